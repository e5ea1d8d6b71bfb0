#include "parallel/sharded/module_buffers.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace muster::parallel {

void ModuleBuffers::convert(const std::vector<at::Tensor>& buffers, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    built_dtypes_[buffer.unsafeGetTensorImpl()] = buffer.scalar_type();
    // Changes the dtype of the module's own handle. The forward would not read a new tensor.
    buffer.set_data(buffer.to(dtype));
  }
}

void ModuleBuffers::adopt(const std::vector<NamedTensor>& buffers) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : buffers) tensors.push_back(tensor);
  broadcast_.emplace(std::move(tensors));
}

void ModuleBuffers::broadcast(const ShardGroups& groups) const {
  for (const auto* group : {&groups.replicas, &groups.shards})
    if (group->size() > 1) broadcast_->run(*group);
}

at::ScalarType ModuleBuffers::built_dtype(const at::Tensor& tensor) const {
  const auto built = built_dtypes_.find(tensor.unsafeGetTensorImpl());
  return built == built_dtypes_.end() ? tensor.scalar_type() : built->second;
}

}  // namespace muster::parallel
