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

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_of_all(Call& call, const at::Tensor& tensor) {
  auto buffer = buffer_of(tensor);
  if (!buffer) return nullptr;
  SharedPlace& own = call.operation.place;
  const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  own = {buffer->number, static_cast<uint64_t>(begin - buffer->parts[rank_])};
  exchange_headers(call);
  call.met = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const SharedPlace theirs = read_header(*frames_[peer]).place;
    if (theirs.buffer != own.buffer || theirs.offset > buffer->bytes - tensor.nbytes()) return nullptr;
    if (theirs.offset != own.offset && call.operation.kind != OperationKind::all_gather) return nullptr;
  }
  return buffer;
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

void SharedCollectives::end_reading(const Call& call) {
  end_step();
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) wait_step(call, peer);
}

void SharedCollectives::all_reduce_in(const SharedBuffer& buffer, const Call& call) {
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
  end_reading(call);
}

void SharedCollectives::all_gather_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& in = call.operation.in;
  const std::size_t bytes = in.nbytes();
  auto* pieces = static_cast<std::byte*>(call.operation.out.mutable_data_ptr());
  std::byte* own = pieces + bytes * rank_;
  if (own != in.const_data_ptr()) std::memmove(own, in.const_data_ptr(), bytes);
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    std::memcpy(pieces + bytes * peer, buffer.parts[peer] + read_header(*frames_[peer]).place.offset, bytes);
  }
  end_reading(call);
}

void SharedCollectives::reduce_scatter_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& out = call.operation.out;
  const std::size_t begin = call.operation.place.offset + out.nbytes() * rank_;
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = buffer.parts[peer] + begin;
  reduce_memory(out.mutable_data_ptr(), nullptr, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(),
                call.operation.reduce);
  end_reading(call);
}

}  // namespace muster::comm
