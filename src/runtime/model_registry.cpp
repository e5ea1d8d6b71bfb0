#include "model_registry.h"

namespace muster::runtime {

void ModelRegistry::add(const std::shared_ptr<PreparedModel>& model) {
  models_.push_back(model);
  ++generation_;
  model->managed->set_place(static_cast<int64_t>(models_.size()));
  model->managed->note_step(steps_);
}

void ModelRegistry::start_steps(int64_t at) {
  steps_ = at;
  for (const auto& model : models()) model->managed->note_step(steps_);
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

}  // namespace muster::runtime
