#include "model_registry.h"

#include <exception>
#include <ranges>

#include <c10/util/ScopeExit.h>

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

namespace {

/// The number of completed reductions; 0 for a model that has none.
int64_t reduction_count_of(const PreparedModel& model) {
  const auto* reductions = model.managed->gradient_reductions();
  return reductions ? reductions->reduction_count() : 0;
}

}  // namespace

bool OptimizerModels::hold(const at::Tensor& parameter) const {
  return std::ranges::any_of(models_, [&](const Use& use) { return use.model->managed->expects(parameter); });
}

std::shared_ptr<PreparedModel> OptimizerModels::add_holder_of(const at::Tensor& parameter) {
  const auto models = registry_->models();
  const auto holder =
      std::ranges::find_if(models, [&](const auto& model) { return model->managed->expects(parameter); });
  if (holder == models.end()) return nullptr;
  models_.push_back({*holder, reduction_count_of(**holder), registry_->index_of(**holder), nullptr});
  return *holder;
}

bool OptimizerModels::any_reduces() const {
  return std::ranges::any_of(models_, [](const Use& use) { return use.model->managed->gradient_sync(); });
}

bool OptimizerModels::any_local() const {
  return std::ranges::any_of(models_, [](const Use& use) { return !use.model->managed->gradient_sync(); });
}

bool OptimizerModels::have_gradients(const std::vector<at::Tensor>& parameters) const {
  return std::ranges::any_of(models_, [&](const Use& use) {
    auto& managed = *use.model->managed;
    if (const auto* reductions = managed.gradient_reductions()) return reductions->has_gradients();
    bool found = false;
    managed.for_each_gradient(parameters, [&](const at::Tensor&) { found = true; });
    return found;
  });
}

bool OptimizerModels::needs_reduction(const Use& use) const {
  auto& managed = *use.model->managed;
  const auto* reductions = managed.gradient_reductions();
  return reductions && managed.gradient_sync() &&
         (reductions->reduction_count() == use.reductions || !reductions->has_gradients());
}

/// Whether a model needs a reduction: one of this optimizer, or another that the same loss goes through.
bool OptimizerModels::needs_reduction_in_order(int64_t index) const {
  for (const auto& use : models_)
    if (use.index == index) return needs_reduction(use);
  const auto model = registry_->at(index);
  return model && model->managed->gradient_reductions() && model->managed->gradient_sync() &&
         !registry_->reductions().seen(index);
}

void OptimizerModels::join_other_ranks(const std::vector<at::Tensor>* of, const std::function<void()>& before) {
  // The order is not known yet. Assume that backward reaches models in the reverse of the order in which the program
  // names them.
  for (const auto& use : std::views::reverse(models_)) {
    if (!needs_reduction(use)) continue;
    const auto holds = [&](const at::Tensor& parameter) { return use.model->managed->find(parameter) != nullptr; };
    if (of && std::none_of(of->begin(), of->end(), holds)) continue;
    if (before) before();
    const auto order = use.order;
    const auto record =
        c10::make_scope_exit([&] {  // also if parameters turn out to be due: other ranks have recorded it
          if (order) registry_->reductions().repeat(order);
        });
    repeat_reductions(order ? *order : ReductionRecord::Order{{use.index}, {use.index}});
  }
}

void OptimizerModels::repeat_reductions(const ReductionRecord::Order& order) {
  std::map<int64_t, std::shared_ptr<PreparedModel>> started;
  for (const auto index : order.began)
    if (needs_reduction_in_order(index))
      (started[index] = registry_->at(index))->managed->gradient_reductions()->start_reduction();
  std::exception_ptr first;
  for (const auto index : order.ended) try {
      if (const auto model = started.find(index); model != started.end())
        model->second->managed->gradient_reductions()->finish_reduction();
    } catch (const UsageError&) {  // other ranks' backward has sent the messages of all models
      if (!first) first = std::current_exception();
    }
  if (first) std::rethrow_exception(first);
}

void OptimizerModels::note_orders() {
  if (ranks_ == 1) return;
  for (auto& use : models_) use.order = registry_->reductions().latest(use.index);
}

void OptimizerModels::note_reductions() {
  for (auto& use : models_) use.reductions = reduction_count_of(*use.model);
  if (ranks_ > 1) registry_->reductions().consume();
}

void OptimizerModels::note_loaded_gradients(bool reduced) {
  for (auto& use : models_) use.reductions = reduction_count_of(*use.model) - (reduced ? 1 : 0);
}

}  // namespace muster::runtime
