#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sim/machine.h"

namespace muster::sim {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}
inline c10::Stream stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

/// Excludes the host thread's own dispatch state from what a kernel does.
struct AsKernel {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard plain{c10::autocast_dispatch_keyset |
                                           c10::DispatchKeySet(c10::DispatchKey::DeferredInit)};
  at::NoGradGuard no_grad;
};

/// Tensors of one call as CPU tensors that kernels may access. Tensors on the device's bytes own nothing: like a
/// kernel's pointers, they do not keep memory alive. Pinned memory is kept. Tensors that share a storage still share
/// one.
class KernelTensors {
 public:
  /// Tensors in other host memory are returned unchanged.
  at::Tensor operator()(const at::Tensor& tensor);

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};
at::Tensor kernel_tensor(const at::Tensor& tensor);

/// Adds the bytes of the tensor's elements to `all` if they are the device's or pinned.
void add_access(std::vector<Access>& all, const at::Tensor& tensor, bool writes);

/// Copies on the stream. Tensors on the device are read and written when the copy runs, and so are host tensors, which
/// it keeps alive.
void enqueue_copy(c10::Stream stream, const std::string& what, const at::Tensor& from, const at::Tensor& to);

}  // namespace muster::sim
