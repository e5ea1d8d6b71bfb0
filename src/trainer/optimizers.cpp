#include "muster/trainer/optimizers.h"

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "optimization.h"

namespace muster {

void Optimizers::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (!optimizer)
    throw UsageError("MU443", "configure_optimizers returned an empty pointer for an optimizer; return {} for none");
  entries_.push_back({.optimizer = std::move(optimizer)});
}

void Optimizers::add_scheduler(LRSchedulerConfig config) {
  if (entries_.empty())
    throw UsageError("MU443",
                     "configure_optimizers returned a scheduler before any optimizer; name each after its optimizer");
  entries_.back().schedulers.push_back(std::move(config));
}

at::Tensor ModuleOptimizer::step(const Closure& closure) const {
  return trained_->optimization->step(*trained_, closure);
}
void ModuleOptimizer::zero_grad(bool set_to_none) const { trained_->prepared.zero_grad(set_to_none); }
int64_t ModuleOptimizer::steps() const { return trained_->made_steps(); }
std::vector<torch::optim::OptimizerParamGroup>& ModuleOptimizer::param_groups() const {
  trained_->step_deferred_schedulers();
  return trained_->own->param_groups();
}
torch::optim::Optimizer& ModuleOptimizer::inner() const {
  trained_->wait_for_step();
  return *trained_->own;
}

ToggledOptimizer::ToggledOptimizer(const ModuleOptimizer& one, const std::vector<ModuleOptimizer>& all) {
  const auto own = [&](const at::Tensor& parameter) {
    return std::ranges::any_of(one.param_groups(), [&](const auto& group) {
      return std::ranges::any_of(group.params(), [&](const at::Tensor& mine) { return mine.is_same(parameter); });
    });
  };
  for (const auto& other : all)
    for (const auto& group : other.param_groups())
      for (const auto& parameter : group.params())
        if (parameter.requires_grad() && !own(parameter)) frozen_.push_back(parameter.set_requires_grad(false));
}
ToggledOptimizer::~ToggledOptimizer() {
  for (auto& parameter : frozen_) parameter.set_requires_grad(true);
}

}  // namespace muster
