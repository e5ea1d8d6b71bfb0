#include "parts.h"

#include "muster/base/error.h"

#include <torch/types.h>

#include <algorithm>

namespace muster::runtime {

void ModelRegistry::add(const std::shared_ptr<PreparedModel>& model) {
  models_.push_back(model);
  ++generation_;
}

std::vector<std::shared_ptr<PreparedModel>> ModelRegistry::models() const {
  std::vector<std::shared_ptr<PreparedModel>> alive;
  for (const auto& entry : models_)
    if (auto model = entry.lock()) alive.push_back(std::move(model));
  return alive;
}

std::shared_ptr<PreparedModel> ModelRegistry::find(const torch::nn::Module& module) const {
  for (const auto& entry : models_)
    if (auto model = entry.lock(); model && model->module.get() == &module) return model;
  return nullptr;
}

PreparedOptimizer::PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, std::shared_ptr<ModelRegistry> registry,
                                     dist::Communicator group)
    : inner_(std::move(inner)), registry_(std::move(registry)), group_(std::move(group)), fused_(*inner_) {}

void PreparedOptimizer::bind() {
  if (bound_generation_ == registry_->generation()) return;
  size_t index = 0;
  for (const auto& group : inner_->param_groups())
    for (const auto& parameter : group.params()) bind_parameter(parameter, index++);
  bound_generation_ = registry_->generation();
}

void PreparedOptimizer::bind_parameter(const at::Tensor& parameter, size_t index) {
  auto holds = [&](const auto& model) { return model->managed->find(parameter) != nullptr; };
  if (std::any_of(models_.begin(), models_.end(), holds)) return;
  const auto models = registry_->models();
  const auto holder = std::find_if(models.begin(), models.end(), holds);
  if (holder != models.end()) {
    models_.push_back(*holder);
    fused_.add_source(*(*holder)->managed);
  } else if (parameter.requires_grad() && group_.size() > 1) {
    throw ConfigError("MU178", "parameter " + std::to_string(index) + " of a prepared optimizer belongs to no prepared module, so "
                               "its gradient would differ from rank to rank; prepare the module that owns it");
  }
}

at::Tensor PreparedOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  bind();
  if (!closure || group_.size() == 1) return fused_.step(std::move(closure));
  return fused_.step([&] {
    auto loss = closure();
    auto mean = loss.detach().clone();
    group_.all_reduce(mean, dist::ReduceOp::mean);
    return mean;
  });
}

void PreparedOptimizer::zero_grad(bool set_to_none) {
  bind();
  fused_.zero_grad(set_to_none);
}

}  // namespace muster::runtime

namespace muster {

Optimizer::Optimizer(std::shared_ptr<runtime::PreparedOptimizer> prepared) : prepared_(std::move(prepared)) {}
at::Tensor Optimizer::step(torch::optim::Optimizer::LossClosure closure) { return prepared_->step(std::move(closure)); }
void Optimizer::zero_grad(bool set_to_none) { prepared_->zero_grad(set_to_none); }
std::vector<torch::optim::OptimizerParamGroup>& Optimizer::param_groups() { return inner().param_groups(); }
torch::optim::Optimizer* Optimizer::operator->() const { return &prepared_->inner(); }
torch::optim::Optimizer& Optimizer::inner() const { return prepared_->inner(); }

void Scheduler::step() const {
  if (!step_) throw UsageError("MU180", "this scheduler watches a metric; call step(metric)");
  step_();
}

void Scheduler::step(double metric) const {
  if (!step_by_metric_) throw UsageError("MU180", "this scheduler watches no metric; call step() without one");
  step_by_metric_(metric);
}

}  // namespace muster
