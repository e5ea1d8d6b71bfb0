#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "comm/mpi/duplicated_comm.h"

namespace muster::comm::mpi {

/// One message to or from a rank, in memory of its own: what MPI still writes to or reads from when a wait has failed
/// is never memory of the program. Thread safety: one thread at a time.
class Message {
 public:
  explicit Message(std::shared_ptr<DuplicatedComm> comm) : comm_(std::move(comm)) {}
  ~Message();
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool under_way() const noexcept { return request_.has_value(); }
  /// At least so many bytes. Requires: it is not under way.
  std::byte* memory(std::size_t bytes);
  const std::byte* memory() const noexcept { return memory_.get(); }
  /// How many bytes came, or are sent.
  std::size_t bytes() const noexcept { return bytes_; }

  /// Starts it with that much of its memory. Requires: it is not under way. Returns an error code.
  int send(std::size_t bytes, int to, int tag);
  int recv(std::size_t bytes, int from, int tag);
  /// Afterwards it is not under way any more if MPI is done with it, or failed. Returns an error code.
  int test();

 private:
  std::shared_ptr<DuplicatedComm> comm_;
  std::shared_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0;
  std::size_t bytes_ = 0;
  bool receives_ = false;
  std::optional<Handle> request_;
};

}  // namespace muster::comm::mpi
