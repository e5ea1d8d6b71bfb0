// Operations on tensors in memory that all ranks have: nothing is copied before it is reduced.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "comm/pieces.h"
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
  std::erase_if(buffers_, [](const auto& known) { return known.expired(); });
  buffers_.push_back(buffer);
  call.operation.shared_buffer = std::move(buffer);
}

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_of(const at::Tensor& tensor) const {
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  const std::less_equal<const std::byte*> up_to;
  for (const auto& known : buffers_)
    if (auto buffer = known.lock()) {
      const std::byte* part = buffer->parts[rank_];
      if (up_to(part, begin) && up_to(begin + tensor.nbytes(), part + buffer->bytes)) return buffer;
    }
  return nullptr;
}

bool SharedCollectives::is_same_place(const Call& call) const {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && read_header(*frames_[peer]).place != call.operation.place) return false;
  return true;
}

void SharedCollectives::end_step() {
  areas_->control(rank_).steps.store(++steps_, std::memory_order_release);
  areas_->publish();
}

void SharedCollectives::wait_step(const Call& call, int peer) {
  const auto& steps = areas_->control(peer).steps;
  areas_->wait(
      peer, [&] { return steps.load(std::memory_order_acquire) >= steps_; }, call.deadline);
}

void SharedCollectives::reduce_in_place(const Call& call, const SharedBuffer& buffer) {
  const at::Tensor& out = call.operation.out;
  const auto width = static_cast<int64_t>(out.element_size());
  const auto at = [&](int rank, const Range& range) {
    return buffer.parts[rank] + call.operation.place.offset + range.begin * width;
  };
  const Range own = aligned_piece_of(rank_, out.numel(), size_);
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = at(peer, own);
  reduce_memory(at(rank_, own), nullptr, terms_, static_cast<std::size_t>(own.size()), out.scalar_type(),
                call.operation.reduce);
  end_step();
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const Range theirs = aligned_piece_of(peer, out.numel(), size_);
    wait_step(call, peer);
    std::memcpy(at(rank_, theirs), at(peer, theirs), theirs.size() * width);
  }
  // The caller may write to the tensor once all have read from it.
  end_step();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) wait_step(call, peer);
}

}  // namespace muster::comm
