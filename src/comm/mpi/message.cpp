#include "comm/mpi/message.h"

namespace muster::comm::mpi {

Message::~Message() {
  if (!request_) return;
  if (!receives_ || !comm_->calls().cancel(*request_)) comm_->keep(memory_);
}

std::byte* Message::memory(std::size_t bytes) {
  if (capacity_ < bytes) {
    memory_ = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    capacity_ = bytes;
  }
  return memory_.get();
}

int Message::send(std::size_t bytes, int to, int tag) {
  Handle request = 0;
  const int code = comm_->calls().send(memory_.get(), bytes, to, tag, comm_->communicator(), request);
  receives_ = false;
  bytes_ = bytes;
  if (code == 0) request_ = request;
  return code;
}

int Message::recv(std::size_t bytes, int from, int tag) {
  Handle request = 0;
  const int code = comm_->calls().recv(memory(bytes), bytes, from, tag, comm_->communicator(), request);
  receives_ = true;
  bytes_ = 0;
  if (code == 0) request_ = request;
  return code;
}

int Message::test() {
  if (!request_) return 0;
  bool done = false;
  std::size_t received = 0;
  const int code = comm_->calls().test(*request_, done, received);
  if (!done && code == 0) return 0;
  if (code == kFinalized || code == kWrongThread) return code;
  request_.reset();
  if (receives_) bytes_ = received;
  return code;
}

}  // namespace muster::comm::mpi
