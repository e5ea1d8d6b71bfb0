#include "sim/tensors.h"

#include <algorithm>
#include <utility>

#include <ATen/EmptyTensor.h>

#include "sim/memory.h"

namespace muster::sim {
namespace {

/// A tensor of more separate runs of bytes than this counts as one run from its first byte to its last.
constexpr int64_t kMostRuns = 1024;

struct Dim {
  int64_t size, stride;
};

/// The dims that remain when dims that continue each other are merged into one run of `run` elements.
std::vector<Dim> outer_dims(const at::Tensor& tensor, int64_t& run) {
  std::vector<Dim> dims;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) dims.push_back({tensor.size(i), tensor.stride(i)});
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  run = 1;
  auto dim = dims.begin();
  for (; dim != dims.end() && dim->stride <= run; ++dim) run += (dim->size - 1) * dim->stride;
  return {dim, dims.end()};
}

/// Keeps pinned memory alive, but not memory of the device.
at::DataPtr kernel_data(const c10::Storage& storage) {
  auto* data = const_cast<void*>(storage.data());
  if (storage.device_type() != c10::DeviceType::CPU) return {kernel_pointer(data), at::kCPU};
  return {pinned_kernel_pointer(data), new c10::Storage(storage),
          [](void* kept) { delete static_cast<c10::Storage*>(kept); }, at::kCPU};
}

}  // namespace

at::Tensor KernelTensors::operator()(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (!is_on_device(tensor) && !is_pinned(storage->data())) return tensor;
  auto [place, is_new] = storages_.try_emplace(storage);
  if (is_new)
    place->second = c10::Storage(c10::Storage::use_byte_size_t(), storage->nbytes(), kernel_data(tensor.storage()),
                                 nullptr, /*resizable=*/false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(place->second),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  result.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

at::Tensor kernel_tensor(const at::Tensor& tensor) { return KernelTensors()(tensor); }

void add_access(std::vector<Access>& all, const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  const auto* storage = static_cast<const char*>(tensor.storage().data());
  if (!is_on_device(tensor) && !is_pinned(storage)) return;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  const auto* begin = storage + tensor.storage_offset() * item;
  int64_t run = 1, runs = 1;
  auto dims = outer_dims(tensor, run);
  for (const auto& dim : dims) runs *= dim.size;
  if (runs > kMostRuns) {
    for (const auto& dim : std::exchange(dims, {})) run += (dim.size - 1) * dim.stride;
    runs = 1;
  }
  for (int64_t i = 0; i < runs; ++i) {
    int64_t offset = 0, rest = i;
    for (const auto& dim : dims) {
      offset += rest % dim.size * dim.stride;
      rest /= dim.size;
    }
    all.push_back({begin + offset * item, begin + (offset + run) * item, writes});
  }
}

void enqueue_copy(c10::Stream stream, const std::string& what, const at::Tensor& from, const at::Tensor& to) {
  Command command{what, {}};
  add_access(command.accesses, from, false);
  add_access(command.accesses, to, true);
  KernelTensors on_kernel;
  command.run = [from = on_kernel(from), to = on_kernel(to)] {
    const AsKernel plain;
    to.copy_(from);
  };
  Machine::get().enqueue(stream, std::move(command));
}

}  // namespace muster::sim
