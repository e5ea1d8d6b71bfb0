#include "comm/mpi/block_queue.h"

#include <algorithm>
#include <cstring>

#include "muster/base/format.h"

namespace muster::comm::mpi {

BlockQueue::BlockQueue(const std::shared_ptr<DuplicatedComm>& comm, Direction direction, int rank, int tag)
    : calls_(comm->calls()), direction_(direction), rank_(rank), tag_(tag), slices_{Slice(comm), Slice(comm)} {}

void BlockQueue::push(const std::shared_ptr<Block>& block) {
  waiting_.push_back(block);
  progress();
}

bool BlockQueue::progress() {
  bool moved = false;
  while (failure_.empty() && under_way_ > 0 && finish_first()) moved = true;
  while (failure_.empty() && under_way_ < slices_.size() && !waiting_.empty() && start_next()) moved = true;
  return moved;
}

bool BlockQueue::start_next() {
  const auto block = waiting_.front();
  // Given up before it started: the peer would wait for a block that never comes, or send one that nobody takes.
  if (!block->data) return end("a block was given up"), false;
  auto& slice = slices_.at((first_ + under_way_) % slices_.size());
  slice.block = block;
  slice.begin = block->started;
  slice.bytes = std::min(kSliceBytes, block->bytes - block->started);
  // Room for a whole slice: ranks that disagree may send more than is expected, and Open MPI 4.1 then writes past the
  // end.
  auto* memory = slice.message.memory(direction_ == Direction::out ? slice.bytes : kSliceBytes);
  if (direction_ == Direction::out) std::memcpy(memory, block->data + slice.begin, slice.bytes);
  const int code = direction_ == Direction::out ? slice.message.send(slice.bytes, rank_, tag_)
                                                : slice.message.recv(kSliceBytes, rank_, tag_);
  if (code != 0) return end(calls_.error_string(code)), false;
  block->started += slice.bytes;
  if (block->started == block->bytes) waiting_.pop_front();
  ++under_way_;
  return true;
}

bool BlockQueue::finish_first() {
  auto& slice = slices_.at(first_);
  if (const int code = slice.message.test()) return end(calls_.error_string(code)), false;
  if (slice.message.under_way()) return false;
  if (slice.message.bytes() != slice.bytes)
    return end(formatted("{} bytes came where {} were expected", slice.message.bytes(), slice.bytes)), false;
  auto& block = *slice.block;
  if (direction_ == Direction::in && block.data)
    std::memcpy(block.data + slice.begin, slice.message.memory(), slice.bytes);
  block.done += slice.bytes;
  slice.block.reset();
  first_ = (first_ + 1) % slices_.size();
  --under_way_;
  return true;
}

void BlockQueue::end(const std::string& failure) {
  failure_ = failure;
  waiting_.clear();
}

}  // namespace muster::comm::mpi
