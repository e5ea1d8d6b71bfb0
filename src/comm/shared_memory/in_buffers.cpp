// Operations on tensors in memory that all ranks have: nothing is copied before it is reduced, and where ranks may
// write to each other's memory, nothing after it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/pieces.h"
#include "comm/shared_memory/copying.h"
#include "comm/shared_memory/reduction.h"
#include "comm/shared_memory/shared_collectives.h"

namespace muster::comm {
namespace {

/// So much of each rank fits a core's second-level cache several times.
constexpr int64_t kPartBytes = 128 << 10;

}  // namespace

void SharedCollectives::allocate_buffer(const Call& call) {
  exchange_headers(call);
  auto buffer = areas_->allocate_buffer(static_cast<std::size_t>(call.operation.list.at(0)), call.operation.peer_access,
                                        ++last_buffer_number_, call.deadline);
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
  call.headers_exchanged = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const SharedMemoryLocation theirs = read_header(boxes_[peer]->frame).location;
    if (theirs.buffer != own.buffer || theirs.offset > buffer->bytes - tensor.nbytes()) return nullptr;
    if (theirs.offset != own.offset && call.operation.kind != OperationKind::all_gather) return nullptr;
  }
  return buffer;
}

std::shared_ptr<SharedBuffer> SharedCollectives::buffer_to_read(Call& call, const at::Tensor& tensor) {
  // Up to this size a tensor is still in the caches of the rank that wrote it.
  constexpr std::size_t kFarBytes = std::size_t{16} << 20;
  if (tensor.nbytes() <= Mailbox::kMostBytes || (avoids_caches_ && tensor.nbytes() <= kFarBytes)) return nullptr;
  return buffer_of_all(call, tensor);
}

void SharedCollectives::end_reading(const Call& call) {
  areas_->control(rank_).steps.store(++steps_, std::memory_order_release);
  areas_->notify_all();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto& steps = areas_->control(peer).steps;
    areas_->wait(
        peer, [&] { return steps.load(std::memory_order_acquire) >= steps_; }, call.deadline);
  }
}

void SharedCollectives::reduce_in(const SharedBuffer& buffer, const Call& call, Range elements) {
  const at::Tensor& out = call.operation.out;
  const auto width = static_cast<int64_t>(out.element_size());
  const int64_t at_once = kPartBytes / width;
  for (int64_t begin = elements.begin; begin < elements.end; begin += at_once) {
    // A rank that was stopped while the others gave up writes to their memory no longer than this.
    areas_->check_alive();
    for (int peer = 0; peer < size_; ++peer)
      terms_[peer] = buffer.parts[peer] + call.operation.location.offset + begin * width;
    for (int step = 0; step < size_; ++step) results_[step] = const_cast<void*>(terms_[(rank_ + step) % size_]);
    reduce_memory(results_, terms_, static_cast<std::size_t>(std::min(at_once, elements.end - begin)),
                  out.scalar_type(), call.operation.reduce);
  }
}

void SharedCollectives::all_reduce_in(const SharedBuffer& buffer, const Call& call) {
  // Of memory without an end a core fetches ahead.
  constexpr int64_t kLongPartBytes = 4 << 20;
  const at::Tensor& out = call.operation.out;
  const bool fits_caches = out.nbytes() * static_cast<std::size_t>(size_) <= kCacheBytes;
  const int64_t part = (fits_caches ? kPartBytes : kLongPartBytes) / static_cast<int64_t>(out.element_size());
  const int64_t block = part * size_, blocks = (out.numel() + block - 1) / block;
  // The last block was written last, and so is still in a cache. Of far cores' caches only the small ones pay.
  const bool last_first = fits_caches || !avoids_caches_;
  for (int64_t number = 0; number < blocks; ++number) {
    const int64_t begin = (last_first ? blocks - 1 - number : number) * block;
    const Range own = aligned_piece_of(rank_, std::min(block, out.numel() - begin), size_);
    reduce_in(buffer, call, {begin + own.begin, begin + own.end});
  }
  end_reading(call);
}

void SharedCollectives::all_gather_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& in = call.operation.in;
  const std::size_t bytes = in.nbytes();
  auto* pieces = static_cast<std::byte*>(call.operation.out.mutable_data_ptr());
  const bool fits_caches = bytes * static_cast<std::size_t>(size_) <= kCacheBytes;
  const auto copy = fits_caches ? copy_in_caches : avoids_caches_ ? copy_string : copy_past_caches;
  for (int peer = 0; peer < size_; ++peer) {
    const void* from =
        peer == rank_ ? in.const_data_ptr() : buffer.parts[peer] + read_header(boxes_[peer]->frame).location.offset;
    std::byte* to = pieces + bytes * peer;
    if (to != from) copy(to, from, bytes);
  }
  end_reading(call);
}

void SharedCollectives::reduce_scatter_in(const SharedBuffer& buffer, const Call& call) {
  const at::Tensor& out = call.operation.out;
  const std::size_t begin = call.operation.location.offset + out.nbytes() * rank_;
  for (int peer = 0; peer < size_; ++peer) terms_[peer] = buffer.parts[peer] + begin;
  void* const result = out.mutable_data_ptr();
  reduce_memory({&result, 1}, terms_, static_cast<std::size_t>(out.numel()), out.scalar_type(), call.operation.reduce);
  end_reading(call);
}

}  // namespace muster::comm
