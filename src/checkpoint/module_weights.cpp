#include <torch/nn/module.h>

#include "muster/checkpoint/weights.h"

namespace muster {
namespace {

void append(NamedTensors& weights, const torch::nn::Module& module, const std::string& prefix) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false))
    if (entry.value().defined()) weights.emplace_back(prefix + entry.key(), entry.value());
  for (const auto& entry : module.named_buffers(/*recurse=*/false))
    if (entry.value().defined()) weights.emplace_back(prefix + entry.key(), entry.value());
  for (const auto& child : module.named_children()) append(weights, *child.value(), prefix + child.key() + ".");
}

}  // namespace

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors weights;
  append(weights, module, "");
  return weights;
}

}  // namespace muster
