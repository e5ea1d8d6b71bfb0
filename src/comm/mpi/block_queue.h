#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "comm/mpi/message.h"

namespace muster::comm::mpi {

/// A block while it is sent or received.
struct Block {
  std::byte* data;  ///< memory of the program; null: the block was given up
  std::size_t bytes;
  std::size_t started = 0;
  std::size_t done = 0;
};

/// The blocks of one channel to or from one rank, sent in order and in slices. Both ends must start the blocks in one
/// order, with equal sizes.
/// Why: docs/decisions/0148-mpi-never-sees-the-programs-memory.md.
class BlockQueue {
 public:
  /// The largest size of one message in bytes.
  static constexpr std::size_t kSliceBytes = std::size_t{256} * 1024;

  enum class Direction { out, in };
  BlockQueue(const std::shared_ptr<DuplicatedComm>& comm, Direction direction, int rank, int tag);

  void push(const std::shared_ptr<Block>& block);
  /// Makes all progress that is possible without waiting. Returns whether anything moved.
  bool progress();
  bool is_idle() const noexcept { return under_way_ == 0 && waiting_.empty(); }
  /// Why it cannot continue; empty: it can.
  const std::string& failure() const noexcept { return failure_; }

 private:
  struct Slice {
    explicit Slice(std::shared_ptr<DuplicatedComm> comm) : message(std::move(comm)) {}
    Message message;
    std::shared_ptr<Block> block;
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };

  bool start_next();
  bool finish_first();
  void end(const std::string& failure);

  Calls& calls_;
  const Direction direction_;
  const int rank_;
  const int tag_;
  std::array<Slice, 2> slices_;
  std::size_t first_ = 0;      ///< index of the oldest slice in flight
  std::size_t under_way_ = 0;  ///< number of slices in flight
  std::deque<std::shared_ptr<Block>> waiting_;
  std::string failure_;
};

}  // namespace muster::comm::mpi
