#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "comm/mpi/duplicated_comm.h"

namespace muster::comm::mpi {

/// One message to or from a rank, in memory of its own: MPI may still use that memory after a wait has failed, so it is
/// never memory of the program. Thread safety: one thread at a time.
/// Why: docs/decisions/0148-mpi-never-sees-the-programs-memory.md.
class Message {
 public:
  explicit Message(std::shared_ptr<DuplicatedComm> comm) : comm_(std::move(comm)) {}
  ~Message();
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  bool under_way() const noexcept { return request_.has_value(); }
  /// Memory of at least that many bytes. Requires: the message is not in flight.
  std::byte* memory(std::size_t bytes);
  const std::byte* memory() const noexcept { return memory_.get(); }
  /// Number of bytes received or to be sent.
  std::size_t bytes() const noexcept { return bytes_; }

  /// Starts the message with that many bytes of its memory. Requires: it is not in flight. Returns an error code.
  int send(std::size_t bytes, int to, int tag);
  int recv(std::size_t bytes, int from, int tag);
  /// Tests the message. It is no longer in flight if MPI has completed it, or if it failed. Returns an error code.
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
