#include "muster/optim/elementwise.h"

#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/serialize/archive.h>

#include "base/text.h"
#include "muster/base/error.h"
#include "optim/flat.h"

namespace muster {
namespace {

/// The tensor in the layout of `like`.
at::Tensor with_layout_of(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.layout() == at::kStrided && optim::same_layout(tensor, like)) return tensor;
  const auto dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  return at::empty_like(like).copy_(dense);
}

}  // namespace

double ElementwiseOptions::at(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end())
    throw ConfigError("MU199", "a custom optimizer has no option '" + name + "'" +
                                   known_ones(values_, [](const auto& value) { return value.first; }));
  return found->second;
}

void ElementwiseOptions::set(const std::string& name, double value) {
  at(name);
  values_[name] = value;
}

std::unique_ptr<torch::optim::OptimizerOptions> ElementwiseOptions::clone() const {
  return std::make_unique<ElementwiseOptions>(*this);
}

void ElementwiseOptions::serialize(torch::serialize::InputArchive& archive) {
  for (auto& [name, value] : values_) {
    c10::IValue kept;
    archive.read(name, kept);
    value = kept.toDouble();
  }
}

void ElementwiseOptions::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : values_) archive.write(name, c10::IValue(value));
}

ElementwiseState::ElementwiseState(const std::vector<std::string>& names) {
  for (const auto& name : names) tensors.emplace_back(name, at::Tensor());
}

std::unique_ptr<torch::optim::OptimizerParamState> ElementwiseState::clone() const {
  return std::make_unique<ElementwiseState>(*this);
}

ElementwiseOptimizer::ElementwiseOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                           const ElementwiseOptions& defaults, std::vector<std::string> state_names)
    : Optimizer(groups, defaults.clone()), state_names_(std::move(state_names)) {
  defaults.get_lr();
  if (state_names_.size() > kMaxStates ||
      std::set<std::string>(state_names_.begin(), state_names_.end()).size() != state_names_.size())
    throw ConfigError("MU199", "a custom optimizer keeps at most " + std::to_string(kMaxStates) +
                                   " tensors per parameter, under different names; this one names " +
                                   std::to_string(state_names_.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].has_options()) continue;
    // LibTorch sets its defaults here if it does not know the options class.
    param_groups()[g].set_options(groups[g].options().clone());
    if (!dynamic_cast<const ElementwiseOptions*>(&groups[g].options()))
      throw ConfigError("MU199",
                        "a parameter group of a custom optimizer has options of another class; give it "
                        "muster::ElementwiseOptions");
  }
}

at::Tensor ElementwiseOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode with_grad(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  for (auto& group : param_groups())
    for (const auto& parameter : group.params())
      if (parameter.grad().defined()) update_full(parameter, static_cast<const ElementwiseOptions&>(group.options()));
  return loss;
}

void ElementwiseOptimizer::update_full(const at::Tensor& parameter, const ElementwiseOptions& options) {
  auto& kept = state()[parameter.unsafeGetTensorImpl()];  // LibTorch uses the impl as the key of an optimizer's state
  if (!kept) kept = std::make_unique<ElementwiseState>(state_names_);
  auto& own = static_cast<ElementwiseState&>(*kept);
  const auto value = optim::is_dense(parameter) ? parameter.detach() : parameter.detach().contiguous();
  const auto flat = [](const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); };
  ElementwiseUpdate step{flat(value), flat(with_layout_of(parameter.grad(), value)), {}, ++own.step};
  for (auto& [name, tensor] : own.tensors) {
    tensor = tensor.defined() ? with_layout_of(tensor, value) : at::zeros_like(value);
    step.states.push_back(flat(tensor));
  }
  update(options, step);
  if (!optim::is_dense(parameter)) parameter.detach().copy_(value);
}

}  // namespace muster
