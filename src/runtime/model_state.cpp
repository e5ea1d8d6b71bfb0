#include "model_state.h"

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/checkpoint/weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace muster::runtime {
namespace {

std::string described(const at::Tensor& tensor) {
  std::string shape;
  for (const auto size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return std::string(c10::toString(tensor.scalar_type())) + " [" + shape + "]";
}

bool has_name(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first == name; });
}

}  // namespace

State save_weights_state(const PreparedModel& model) {
  State::Map weights;
  for (auto& [name, tensor] : model.managed->full_state(/*main_only=*/true)) weights.emplace_back(name, tensor.detach());
  return State::Map{{"class", model.module->name()}, {"weights", std::move(weights)}};
}

std::function<void()> prepare_weights(const PreparedModel& model, const State& weights, bool strict) {
  std::string wrong;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  const auto own = weights_of(*model.module);
  for (const auto& [name, tensor] : own) {
    const auto* found = weights.find(name);
    if (!found)
      wrong += strict ? "\n  " + name + " is not in the checkpoint" : "";
    else if (found->tensor().sizes() != tensor.sizes() || found->tensor().scalar_type() != tensor.scalar_type())
      wrong += "\n  " + name + ": " + described(found->tensor()) + " in the checkpoint, " + described(tensor) + " here";
    else
      copies.emplace_back(tensor, found->tensor());
  }
  for (const auto& [name, tensor] : weights.map())
    if (strict && !has_name(own, name)) wrong += "\n  " + name + " is not in the model";
  if (!wrong.empty())
    throw CheckpointError("MU240", formatted("the weights of model {} do not fit the checkpoint:{}\nbuild the model with the sizes it was saved "
                                             "with, or pass over names that only one side has with .strict = false", model.module->name(), wrong));
  return [copies = std::move(copies)] {
    const at::NoGradGuard no_grad;
    for (const auto& [to, from] : copies) at::Tensor(to).copy_(from);
  };
}

}  // namespace muster::runtime
