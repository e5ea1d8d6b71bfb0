#include "parallel/module_buffers.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include "hook/below_autograd.h"
#include "parallel/sharded/sharded_settings.h"

namespace muster::parallel {
namespace {

constexpr int64_t kAlignment = 16;

int64_t aligned_bytes(const at::Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

CoalescedBroadcast::CoalescedBroadcast(std::vector<at::Tensor> tensors) {
  at::NoGradGuard no_grad;
  while (!tensors.empty()) {
    const auto device = tensors.front().device();
    const auto others = std::stable_partition(tensors.begin(), tensors.end(),
                                              [&](const at::Tensor& tensor) { return tensor.device() == device; });
    Message message;
    message.tensors.assign(tensors.begin(), others);
    tensors.erase(tensors.begin(), others);
    int64_t total = 0;
    for (const auto& tensor : message.tensors) total += aligned_bytes(tensor);
    message.bytes = at::empty({total}, at::TensorOptions().dtype(at::kByte).device(device));
    int64_t begin = 0;
    for (const auto& tensor : message.tensors) {
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      message.places.push_back(message.bytes.narrow(0, begin, bytes).view(tensor.scalar_type()).view(tensor.sizes()));
      begin += aligned_bytes(tensor);
    }
    messages_.push_back(std::move(message));
  }
}

void CoalescedBroadcast::run(const comm::Communicator& ranks, int root) const {
  const auto group = ranks.internal("buffers");
  const hook::BelowAutograd below;
  comm::OperationLabel label{.text = "buffers and frozen parameters",
                             .tensor_count = static_cast<int32_t>(messages_.size()),
                             .source = comm::Source::library};
  for (const auto& message : messages_) {
    if (group.rank() == root)
      for (size_t i = 0; i < message.tensors.size(); ++i) message.places[i].copy_(message.tensors[i]);
    group.with_label(label).broadcast(message.bytes, root);
    ++label.tensor_index;
    if (group.rank() != root)
      for (size_t i = 0; i < message.tensors.size(); ++i) message.tensors[i].copy_(message.places[i]);
  }
}

void ModuleBuffers::convert(const std::vector<at::Tensor>& buffers, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    built_dtypes_[buffer.unsafeGetTensorImpl()] = buffer.scalar_type();
    // Changes the dtype of the module's own handle. The forward would not read a new tensor.
    buffer.set_data(buffer.to(dtype));
  }
}

void ModuleBuffers::adopt(const std::vector<NamedTensor>& buffers) { broadcast_.emplace(tensors_in(buffers)); }

void ModuleBuffers::broadcast(const ShardGroups& groups) const {
  for (const auto* group : {&groups.replicas, &groups.shards})
    if (group->size() > 1) broadcast_->run(*group);
}

at::ScalarType ModuleBuffers::built_dtype(const at::Tensor& tensor) const {
  const auto built = built_dtypes_.find(tensor.unsafeGetTensorImpl());
  return built == built_dtypes_.end() ? tensor.scalar_type() : built->second;
}

}  // namespace muster::parallel
