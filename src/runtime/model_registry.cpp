#include "model_registry.h"

#include <algorithm>
#include <string>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"

namespace muster::runtime {

void ModelRegistry::add(const std::shared_ptr<PreparedModel>& model) {
  models_.push_back(model);
  ++generation_;
  if (auto* reductions = model->managed->gradient_reductions())
    reductions->register_with(reductions_, static_cast<int64_t>(models_.size()));
}

std::shared_ptr<PreparedModel> ModelRegistry::at(int64_t index) const {
  return models_.at(static_cast<size_t>(index - 1)).lock();
}

int64_t ModelRegistry::index_of(const PreparedModel& model) const {
  const auto found =
      std::find_if(models_.begin(), models_.end(), [&](const auto& entry) { return entry.lock().get() == &model; });
  return found - models_.begin() + 1;
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

void ModelRegistry::require_unshared(const torch::nn::Module& module) const {
  for (const auto& model : models())
    for (const auto& entry : module.named_parameters()) {
      const auto& parameter = entry.value();
      if (!model->managed->expects(parameter) || (!parameter.requires_grad() && !model->managed->find(parameter)))
        continue;
      std::string there;
      for (const auto& own : model->module->named_parameters())
        if (own.value().is_same(parameter)) there = own.key();
      throw UsageError("MU581",
                       formatted("parameter '{}' of {} is parameter '{}' of {}, which is prepared already, and "
                                 "only one prepared module can train it: prepare one module that holds both, "
                                 "and call its parts by model.run()",
                                 entry.key(), module.name(), there, model->module->name()));
    }
}

}  // namespace muster::runtime
