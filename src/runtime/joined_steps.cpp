#include "joined_steps.h"

#include <unordered_map>

#include "muster/optim/optimizer_state.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "optim/parameter_groups.h"
#include "state_digest.h"

namespace muster::runtime {
namespace {

/// The models whose steps ranks without batches make, too.
std::vector<parallel::Joinable*> followed(const ModelRegistry& registry) {
  std::vector<parallel::Joinable*> models;
  for (const auto& model : registry.models())
    if (auto* joinable = model->managed->joinable(); joinable && joinable->needs_steps()) models.push_back(joinable);
  return models;
}

}  // namespace

void JoinedSteps::announce(const char* what, const std::function<State::Map()>& arguments) const {
  if (!session_ || !session_->makes_steps()) return;
  const State step = State::Map{{"what", what}, {"arguments", arguments()}, {"gradients", gradient_states()}};
  session_->announce(step, static_cast<int64_t>(digest(step)));
}

State JoinedSteps::gradient_states() const {
  State::List states;
  for (const auto* model : followed(*registry_)) states.emplace_back(model->gradient_states());
  return states;
}

void JoinedSteps::adopt_gradient_states(const State& states) const {
  size_t at = 0;
  for (auto* model : followed(*registry_)) model->adopt_gradient_states(states.list().at(at++).text());
}

/// Every parameter of every model, once, in an order that all ranks have.
std::vector<at::Tensor> JoinedSteps::all_parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& model : registry_->models())
    for (const auto& parameter : model->module->parameters()) all.push_back(parameter);
  return optim::distinct_tensors(all);
}

State JoinedSteps::numbers_of(const std::vector<at::Tensor>& parameters) const {
  std::unordered_map<const c10::TensorImpl*, int64_t> number;
  for (const auto& parameter : all_parameters())
    number.emplace(parameter.unsafeGetTensorImpl(), static_cast<int64_t>(number.size()));
  State::List numbers;
  for (const auto& parameter : parameters)
    if (const auto found = number.find(parameter.unsafeGetTensorImpl()); found != number.end())
      numbers.emplace_back(found->second);
  return numbers;
}

std::vector<at::Tensor> JoinedSteps::parameters_of(const State& numbers) const {
  const auto all = all_parameters();
  std::vector<at::Tensor> parameters;
  for (const auto& number : numbers.list()) parameters.push_back(all.at(static_cast<size_t>(number.integer())));
  return parameters;
}

State group_options(torch::optim::Optimizer& optimizer) {
  State::List groups;
  for (auto& group : optimizer.param_groups()) groups.push_back(options_of(group));
  return groups;
}

void set_group_options(torch::optim::Optimizer& optimizer, const State& options) {
  auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) set_options(groups[g], options.list().at(g));
}

}  // namespace muster::runtime
