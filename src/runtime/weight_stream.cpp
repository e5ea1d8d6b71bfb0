#include "weight_stream.h"

#include <exception>
#include <string>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include "muster/parallel/managed_model.h"

namespace muster::runtime {
namespace {

constexpr int64_t kNoMore = -1;  // index that ends the stream

/// A tensor of this shape, with its own memory of one element.
at::Tensor placeholder(const at::Tensor& like, at::ScalarType dtype) {
  const auto element = at::empty(at::IntArrayRef(), at::TensorOptions().dtype(dtype));
  return like.numel() == 0 ? at::empty(like.sizes(), element.options()) : element.expand(like.sizes());
}

}  // namespace

WeightStream::WeightStream(const PreparedModel& model, comm::Communicator group) : group_(std::move(group)) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> shown;
  for (auto& shard : parallel::shards_of(*model.managed)) {
    const auto* parameter = shard.parameter.unsafeGetTensorImpl();
    if (shown.contains(parameter)) continue;
    const auto shape = placeholder(shard.parameter, shard.local.scalar_type());
    shown[parameter] = shape;
    if (shape.numel() > 0) shard_of_[shape.const_data_ptr()] = shards_.size();
    shards_.push_back(std::move(shard));
  }
  for (const auto& [name, tensor] : weights_of(*model.module)) {
    const auto cut = shown.find(tensor.unsafeGetTensorImpl());
    tensors_.emplace_back(
        name, cut != shown.end() ? cut->second : tensor.detach().to(parallel::stored_dtype(*model.managed, tensor)));
  }
}

/// Broadcasts the main rank's `next`.
int64_t WeightStream::agree(int64_t next) const {
  const auto number = at::tensor(next, at::kLong);
  group_.internal("which weights come next").broadcast(number);
  return number.item<int64_t>();
}

std::vector<at::Tensor> WeightStream::pieces(size_t i) const {
  const auto& shard = shards_.at(i);
  return group_.internal("weights number " + std::to_string(i))
      .gather(shard.replica == 0 ? shard.local : shard.local.narrow(0, 0, 0));
}

at::Tensor WeightStream::value_of(const at::Tensor& tensor) const {
  const auto found = shard_of_.find(tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr);
  if (found == shard_of_.end()) return tensor;
  agree(static_cast<int64_t>(found->second));
  const auto& parameter = shards_[found->second].parameter;
  return at::cat(pieces(found->second)).as_strided(parameter.sizes(), parameter.strides());
}

void WeightStream::send_shards() {
  for (auto next = agree(kNoMore); next != kNoMore; next = agree(kNoMore)) pieces(static_cast<size_t>(next));
}

void WeightStream::run(const std::function<void(const NamedTensors&, const ValueOf&)>& write) {
  if (group_.rank() != 0) return send_shards();
  try {
    write(tensors_, [this](const at::Tensor& tensor) { return value_of(tensor); });
  } catch (...) {
    const auto failed = std::current_exception();
    try {
      agree(kNoMore);
    } catch (const std::exception&) {
      // The group is lost; the first error says more.
    }
    std::rethrow_exception(failed);
  }
  agree(kNoMore);
}

}  // namespace muster::runtime
