#include <memory>

#include <ATen/ops/item.h>

#include "sim/kernels.h"
#include "sim/memory.h"
#include "sim/tensors.h"

namespace muster::sim {
namespace {

Machine& machine() { return Machine::get(); }

/// Pinned memory is read when the copy runs. Other memory is read now, like by a driver that stages it.
void from_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool late = non_blocking && is_pinned(from.storage().data());
  enqueue_copy(stream_of(to), "copy to the device", late ? from : from.clone(), to);
  if (!non_blocking) machine().synchronize(stream_of(to), "copy to the device");
}

void to_host(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool late = non_blocking && is_pinned(to.storage().data());
  enqueue_copy(stream_of(from), "copy to the host", from, to);
  if (!late) machine().synchronize(stream_of(from), "copy to the host");
}

void wait_for(c10::Stream waiting, c10::Stream awaited) {
  machine().block(machine().record(std::make_shared<Event>(), awaited), waiting);
}

/// Like CUDA: copies on the source's stream, ordered after and before what the target's stream does.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  const auto source = stream_of(from), target = stream_of(to);
  wait_for(source, target);
  enqueue_copy(source, "copy between devices", from, to);
  wait_for(target, source);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const AsKernel plain;
  if (from.is_cpu()) from_host(from, to, non_blocking);
  else if (to.is_cpu()) to_host(from, to, non_blocking);
  else if (from.device() != to.device()) between_devices(from, to);
  else enqueue_copy(stream_of(to), "copy", from, to);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) {
  machine().synchronize(stream_of(self), "item");
  std::vector<Access> accesses;
  add_access(accesses, self, false);
  machine().host_accesses("item", accesses);
  const auto lock = machine().lock();
  const AsKernel plain;
  return kernel_tensor(self).item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

void register_copies(torch::Library& library) {
  // Conjugate and negative views are resolved by a copy. Without this, they would be resolved first and recurse.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    kept_library("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
  library.impl("record_stream", &record_stream);
}

}  // namespace muster::sim
