// Operations on tensors in memory that all ranks have: nothing is copied before it is reduced.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/pieces.h"
#include "comm/shared_memory/copying.h"
#include "comm/shared_memory/reduction.h"
#include "comm/shared_memory/shared_collectives.h"

namespace muster::comm {

void SharedCollectives::share(const Call& call) {
  exchange_headers(call);
  auto buffer = areas_->share(static_cast<std::size_t>(call.operation.ranks.at(0)), ++shares_, call.deadline);
  const auto has = static_cast<std::byte>(buffer != nullptr);
  exchange_frames(
      call, 1, [&](int) { return &has; }, [](int) { return std::size_t{1}; });
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && *static_cast<const std::byte*>(received(peer)) == std::byte{0}) return;
  if (!buffer) return;
  buffers_.add(buffer);
  call.operation.shared_buffer = std::move(buffer);
}

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_of_all(Call& call, const at::Tensor& tensor) {
  auto buffer = buffers_.of(tensor);
  if (!buffer) return nullptr;
  SharedMemoryLocation& own = call.operation.location;
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  own = {buffer->number, static_cast<uint64_t>(begin - buffer->parts[rank_])};
  exchange_headers(call);
  call.met = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const SharedMemoryLocation theirs = read_header(boxes_[peer]->frame).location;
    if (theirs.buffer != own.buffer || theirs.offset > buffer->bytes - tensor.nbytes()) return nullptr;
    if (theirs.offset != own.offset && call.operation.kind != OperationKind::all_gather) return nullptr;
  }
  return buffer;
}

void SharedCollectives::count_step() { areas_->control(rank_).steps.store(++steps_, std::memory_order_release); }

void SharedCollectives::end_step() {
  count_step();
  areas_->publish();
}

uint64_t SharedCollectives::steps_of(int peer) const {
  return areas_->control(peer).steps.load(std::memory_order_acquire);
}

void SharedCollectives::wait_step(const Call& call, int peer, uint64_t steps) {
  areas_->wait(
      peer, [&] { return steps_of(peer) >= steps; }, call.deadline);
}

void SharedCollectives::end_reading(const Call& call) {
  end_step();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) wait_step(call, peer, steps_);
}

/// An all-reduce block by block: while a rank reduces its part of one, the parts of the others that are reduced come
/// out of a cache. No rank waits before it has reduced all of its own parts.
class SharedCollectives::BlockReduction {
 public:
  BlockReduction(SharedCollectives& group, const SharedBuffer& buffer, const Call& call)
      : group_(group), buffer_(buffer), call_(call), rank_(group.rank_), size_(group.size_),
        elements_(call.operation.out.numel()), width_(static_cast<int64_t>(call.operation.out.element_size())),
        block_(kPartBytes / width_ * size_), blocks_((elements_ + block_ - 1) / block_), before_(group.steps_),
        copied_(static_cast<std::size_t>(size_)) {}

  void run() {
    for (int64_t block = 0; block < blocks_; ++block) {
      reduce_own(block);
      // A rank that sleeps is woken once, after the last block.
      if (block + 1 == blocks_) group_.end_step();
      else group_.count_step();
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) copy_reduced(peer);
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      while (copied_[peer] < blocks_) {
        group_.wait_step(call_, peer, before_ + static_cast<uint64_t>(copied_[peer]) + 1);
        copy_reduced(peer);
      }
    }
  }

 private:
  // Two of a rank's own and two of another's fit a core's second-level cache.
  static constexpr int64_t kPartBytes = 128 * 1024;

  /// The last one first: it was written last, and so is still in a cache where the tensor does not fit.
  Range range(int64_t block, int rank) const {
    const int64_t begin = (blocks_ - 1 - block) * block_;
    const Range part = aligned_piece_of(rank, std::min(block_, elements_ - begin), size_);
    return {begin + part.begin, begin + part.end};
  }
  std::byte* at(int rank, const Range& range) const {
    return buffer_.parts[rank] + call_.operation.location.offset + range.begin * width_;
  }
  void reduce_own(int64_t block) {
    const Range own = range(block, rank_);
    for (int peer = 0; peer < size_; ++peer) group_.terms_[peer] = at(peer, own);
    reduce_memory(at(rank_, own), nullptr, group_.terms_, static_cast<std::size_t>(own.size()),
                  call_.operation.out.scalar_type(), call_.operation.reduce);
  }
  /// What that rank has reduced so far.
  void copy_reduced(int peer) {
    const auto reduced = static_cast<int64_t>(group_.steps_of(peer) - before_);
    for (int64_t& block = copied_[peer]; block < std::min(reduced, blocks_); ++block) {
      const Range theirs = range(block, peer);
      copy_memory(at(rank_, theirs), at(peer, theirs), static_cast<std::size_t>(theirs.size() * width_), false);
    }
  }

  SharedCollectives& group_;
  const SharedBuffer& buffer_;
  const Call& call_;
  const int rank_, size_;
  const int64_t elements_, width_;
  const int64_t block_;  ///< elements of one, the parts of all ranks together
  const int64_t blocks_;
  const uint64_t before_;        ///< steps of earlier operations
  std::vector<int64_t> copied_;  ///< of each rank's parts
};

void SharedCollectives::all_reduce_in(const SharedBuffer& buffer, const Call& call) {
  BlockReduction(*this, buffer, call).run();
  end_reading(call);
}

void SharedCollectives::all_gather_in(const SharedBuffer& buffer, const Call& call) {
  constexpr std::size_t kBlockBytes = 128 * 1024;
  const at::Tensor& in = call.operation.in;
  const std::size_t bytes = in.nbytes();
  const bool is_large = bytes * static_cast<std::size_t>(size_) > kCacheBytes;
  auto* pieces = static_cast<std::byte*>(call.operation.out.mutable_data_ptr());
  for (int peer = 0; peer < size_; ++peer)
    terms_[peer] =
        peer == rank_ ? in.const_data_ptr() : buffer.parts[peer] + read_header(boxes_[peer]->frame).location.offset;
  // All ranks read the same at about the same time, the last first, as it was written last.
  for (std::size_t end = bytes, begin; end > 0; end = begin) {
    begin = (end - 1) / kBlockBytes * kBlockBytes;
    for (int peer = 0; peer < size_; ++peer) {
      const auto* from = static_cast<const std::byte*>(terms_[peer]);
      std::byte* to = pieces + bytes * peer;
      if (to != from) copy_memory(to + begin, from + begin, end - begin, is_large);
    }
  }
  end_reading(call);
}

void SharedCollectives::reduce_scatter_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& out = call.operation.out;
  const std::size_t begin = call.operation.location.offset + out.nbytes() * rank_;
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = buffer.parts[peer] + begin;
  reduce_memory(out.mutable_data_ptr(), nullptr, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(),
                call.operation.reduce);
  end_reading(call);
}

}  // namespace muster::comm
