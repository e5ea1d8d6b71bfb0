#include "device_bytes.h"

#include <bit>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include "base/text.h"
#include "device/device.h"
#include "muster/base/error.h"

namespace muster::checkpoint {

at::Tensor as_bytes_if_packed(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::ScalarType::Float4_e2m1fn_x2 ? tensor.view(at::kByte) : tensor;
}

at::Tensor dense(const at::Tensor& tensor) {
  return as_bytes_if_packed(tensor.detach()).cpu().resolve_conj().resolve_neg().contiguous();
}

void copy_bytes(const std::vector<ByteCopy>& copies) {
  constexpr std::size_t kBytesPerPiece = std::size_t{8} << 20;  // bytes that one thread copies at a time
  std::vector<ByteCopy> pieces;
  for (const ByteCopy& copy : copies)
    for (std::size_t done = 0; done < copy.bytes; done += kBytesPerPiece)
      pieces.push_back({copy.to + done, copy.from + done, std::min(kBytesPerPiece, copy.bytes - done)});
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ByteCopy& piece = pieces[static_cast<std::size_t>(i)];
      std::memcpy(piece.to, piece.from, piece.bytes);
    }
  });
}

bool is_plain(const at::Tensor& tensor) {
  // LibTorch determines the keys of an ordinary tensor; a hard-coded list would miss a key that it adds. A difference
  // of key sets keeps the backend's bit, so raw bits are compared.
  static const uint64_t ordinary = [] {
    const c10::InferenceMode off(false);
    return at::empty({0}, at::kCPU).key_set().raw_repr();
  }();
  return (tensor.key_set().raw_repr() & ~ordinary) == 0 && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

namespace {

constexpr device::SyncPoint kOwnStream{"saving: copies run on a stream of their own"};
constexpr device::SyncPoint kValues{"saving: copies come after what the current stream holds"};
constexpr device::SyncPoint kToHost{"saving: from the device to pinned memory"};
constexpr device::SyncPoint kOnHost{"saving: the host reads pinned memory after the copy"};
constexpr device::SyncPoint kLeft{"saving: after a failure tensors are changed only when copies are done"};
constexpr device::SyncPoint kToDevice{"loading: from pinned memory to the device"};
constexpr device::SyncPoint kReuse{"loading: pinned memory is written again after its copy"};

at::Tensor pinned_bytes(std::size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).pinned_memory(true));
}

}  // namespace

at::Tensor part_of(const at::Tensor& bytes, std::size_t offset, std::size_t count) {
  return bytes.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(count));
}

bool is_on_device(const at::Tensor& tensor) { return device::uses_pinned_memory(tensor.device()); }

at::Tensor bytes_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return as_bytes_if_packed(tensor.detach()).resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
}

std::vector<std::size_t> pinned_pieces(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;  // size of a page in bytes
  const std::size_t to_spare = std::max(bytes / 20, kPage);
  std::vector<std::size_t> pieces;
  while (bytes > 0) {
    const std::size_t whole = std::bit_ceil(bytes);
    pieces.push_back(whole - bytes <= to_spare ? whole : whole / 2);
    bytes -= std::min(bytes, pieces.back());
  }
  return pieces;
}

std::vector<at::Tensor> allocate_pinned(const std::vector<std::size_t>& pieces) {
  std::size_t total = 0;
  for (const auto piece : pieces) total += piece;
  std::vector<at::Tensor> memory;
  try {
    for (const auto piece : pieces) memory.push_back(pinned_bytes(piece));
  } catch (const std::exception& error) {
    throw CheckpointError("MU565", "an asynchronous save needs " + size_text(total) +
                                       " of pinned memory for this rank's state, and the host does not have that (" +
                                       std::string(error.what()).substr(0, 200) +
                                       "): save without .asynchronous, which needs " +
                                       size_text(kRingPieces * kRingBytesEach));
  }
  return memory;
}

PinnedRing::PinnedRing(at::Device device, Use use)
    : device_(device), stream_(device::stream_from_pool(device)), use_(std::move(use)) {}

PinnedRing::~PinnedRing() {
  if (closed_.empty() && open_.sources.empty()) return;
  try {
    device::Event copied;
    {
      const device::StreamScope on_own_stream(kOwnStream, stream_);
      copied = device::record(device_);
    }
    device::stream_wait(kLeft, copied, device_);
  } catch (const std::exception&) {
    // The device is lost; the earlier exception says more.
  }
}

void PinnedRing::append(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.device() != device_) {
    const at::Tensor values = dense(tensor);
    return append({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }
  const auto values_are_there = device::record(device_);
  const device::StreamScope on_own_stream(kOwnStream, stream_);
  device::stream_wait(kValues, values_are_there, device_);
  const at::Tensor bytes = bytes_of(tensor);
  for (std::size_t done = 0; done < bytes.nbytes();) {
    const at::Tensor to = room(bytes.nbytes() - done);
    device::async_copy(kToHost, to, part_of(bytes, done, to.nbytes()));
    open_.sources.push_back(tensor);
    done += to.nbytes();
  }
}

void PinnedRing::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const at::Tensor to = room(bytes.size());
    std::memcpy(to.mutable_data_ptr(), bytes.data(), to.nbytes());
    bytes.remove_prefix(to.nbytes());
  }
}

void PinnedRing::finish() {
  close_piece();
  while (!closed_.empty()) use_oldest();
}

at::Tensor PinnedRing::room(std::size_t wanted) {
  if (open_.filled == kRingBytesEach) close_piece();
  if (!open_.memory.defined()) {
    if (free_.empty() && made_ == kRingPieces) use_oldest();
    if (free_.empty()) {
      free_.push_back(pinned_bytes(kRingBytesEach));
      ++made_;
    }
    open_.memory = std::move(free_.back());
    free_.pop_back();
  }
  const auto count = std::min(wanted, kRingBytesEach - open_.filled);
  const auto to = part_of(open_.memory, open_.filled, count);
  open_.filled += count;
  return to;
}

void PinnedRing::close_piece() {
  if (open_.filled == 0) return;
  const device::StreamScope on_own_stream(kOwnStream, stream_);
  open_.done = device::record(device_);
  closed_.push_back(std::exchange(open_, {}));
}

void PinnedRing::use_oldest() {
  auto& piece = closed_.front();
  device::host_wait(kOnHost, piece.done);
  piece.sources.clear();
  use_({static_cast<const char*>(piece.memory.const_data_ptr()), piece.filled});
  free_.push_back(std::move(piece.memory));
  closed_.pop_front();
}

void append_tensors(std::size_t count, const std::function<at::Tensor(std::size_t)>& tensor_at,
                    const PinnedRing::Use& append, const std::function<void()>& flush) {
  constexpr std::size_t kBytesHeld = std::size_t{8} << 20, kTensorsHeld = 1024;  // limits on copies that are kept
  std::optional<PinnedRing> ring;                                                // from the first tensor on a device on
  std::vector<at::Tensor> owners;
  std::size_t held = 0;
  const auto release = [&] {
    flush();
    owners.clear();
    held = 0;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor tensor = tensor_at(i);
    if (!ring && is_on_device(tensor)) {
      release();
      ring.emplace(tensor.device(), [&](std::string_view bytes) {
        append(bytes);
        flush();
      });
    }
    if (ring) {
      ring->append(tensor);
      continue;
    }
    const at::Tensor& values = owners.emplace_back(dense(tensor));
    append({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
    held += values.nbytes();
    if (held >= kBytesHeld || owners.size() >= kTensorsHeld) release();
  }
  if (ring) ring->finish();
  else release();
}

void DeviceFiller::operator()(const at::Tensor& tensor, const Fill& fill) {
  if (tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const bool plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  const at::Tensor target = plain ? tensor : at::empty_like(tensor, tensor.options(), at::MemoryFormat::Contiguous);
  const at::Tensor bytes = bytes_of(target);
  for (std::size_t done = 0; done < bytes.nbytes();) {
    auto& piece = pieces_[next_++ % kRingPieces];
    device::host_wait(kReuse, piece.done);
    if (!piece.memory.defined()) piece.memory = pinned_bytes(kRingBytesEach);
    const auto count = std::min(kRingBytesEach, bytes.nbytes() - done);
    fill(static_cast<char*>(piece.memory.mutable_data_ptr()), done, count);
    device::async_copy(kToDevice, part_of(bytes, done, count), part_of(piece.memory, 0, count));
    piece.done = device::record(tensor.device());
    done += count;
  }
  if (!plain) at::Tensor(tensor).detach().copy_(target);
}

}  // namespace muster::checkpoint
