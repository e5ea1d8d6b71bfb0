#include "comm/staging.h"

#include <utility>

#include <ATen/ops/empty.h>

namespace muster::comm {
namespace {

constexpr device::SyncPoint kOwnStream{"staging: copies run on a stream of their own"};
constexpr device::SyncPoint kGiven{"staging: the copy to the host reads after the caller's work"};
constexpr device::SyncPoint kToHost{"staging: from the device to pinned memory"};
constexpr device::SyncPoint kFilled{"staging: the host reads after the copy to it"};
constexpr device::SyncPoint kToDevice{"staging: from pinned memory to the device"};
constexpr device::SyncPoint kDone{"staging: the caller reads after the copy to the device"};

/// Whether the operation reads the tensor that it writes.
bool works_in_place(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::broadcast;
}

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
}

at::Tensor pinned_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor copy = pinned_like(tensor);
  device::async_copy(kToHost, copy, tensor);
  return copy;
}

/// Offset and length, in elements, of this rank's part in the result of an in-place gather; length 0 for other
/// operations. That part already has its values, and its owner may read them during the gather.
std::pair<int64_t, int64_t> own_part(OperationKind kind, int rank, const at::Tensor& in, const at::Tensor& out) {
  if (kind != OperationKind::all_gather || !in.defined() || !in.is_alias_of(out)) return {0, 0};
  const auto begin = in.storage_offset() - out.storage_offset();
  return begin == rank * in.numel() ? std::pair(begin, in.numel()) : std::pair<int64_t, int64_t>();
}

void copy_to_device(const at::Tensor& to, const at::Tensor& from, std::pair<int64_t, int64_t> without) {
  if (without.second == 0) return device::async_copy(kToDevice, to, from);
  const auto end = without.first + without.second;
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>(0, without.first), {end, to.numel() - end}})
    if (length > 0)
      device::async_copy(kToDevice, to.view(-1).narrow(0, begin, length), from.view(-1).narrow(0, begin, length));
}

}  // namespace

at::Device device_of(const Operation& operation) {
  const at::Tensor& tensor = described_tensor(operation);
  return tensor.defined() ? tensor.device() : at::Device(at::kCPU);
}

Staging::Staging(const Operation& operation, int rank, const device::Stream& stream)
    : rank_(rank), stream_(stream), device_(device_of(operation)), last_copy_(device::record(device_)),
      in_(operation.in), out_(operation.out), parts_(operation.parts) {}

void Staging::to_host(Operation& operation) {
  const device::StreamScope scope(kOwnStream, stream_);
  device::stream_wait(kGiven, last_copy_, device_);
  operation.in = pinned_copy(in_);
  if (out_.defined()) operation.out = works_in_place(operation.kind) ? pinned_copy(out_) : pinned_like(out_);
  for (auto& part : operation.parts) part = pinned_copy(part);
  device::host_wait(kFilled, device::record(device_));
}

void Staging::to_device(Operation& operation) {
  if (out_.defined()) {
    const device::StreamScope scope(kOwnStream, stream_);
    copy_to_device(out_, operation.out, own_part(operation.kind, rank_, in_, out_));
    device::host_wait(kDone, device::record(device_));
  }
  operation.in = std::exchange(in_, {});
  operation.out = std::exchange(out_, {});
  operation.parts = std::exchange(parts_, {});
}

void Staging::move_results(Operation& operation) const {
  for (auto& result : operation.results)
    if (result.defined()) result = result.to(device_);
}

}  // namespace muster::comm
