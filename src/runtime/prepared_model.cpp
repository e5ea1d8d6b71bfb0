#include "runtime/prepared_model.h"

#include <ATen/core/grad_mode.h>

#include "base/log.h"
#include "hook/watched_storage.h"
#include "memory_owners.h"
#include "muster/base/error.h"
#include "muster/parallel/managed_model.h"
#include "muster/runtime.h"
#include "muster/runtime/evaluation_scope.h"
#include "muster/runtime/outside_forward.h"

namespace muster::runtime {

optim::FlatParameters* flat_parameters_of(const PreparedModel& model) { return model.managed.get(); }

ForwardScope::ForwardScope(PreparedModel& model) : model_(model) { open(); }
ForwardScope::~ForwardScope() {
  if (span_) close();
}

void ForwardScope::open() const {
  span_.emplace(*model_.trace, "forward");
  const bool records = model_.recomputed && model_.scopes.empty() && at::GradMode::is_enabled();
  try {
    if (records && model_.recomputed->awaits_choice()) model_.choose_recomputed();
    cast_.emplace(model_.policy.precision(), model_.device);
    model_.managed->enter_forward();
    if (records && model_.recomputed->any_recomputed()) recording_.emplace(*model_.recomputed);
  } catch (...) {
    cast_.reset();
    span_.reset();
    throw;
  }
  model_.scopes.push_back(this);
}

void ForwardScope::close() const noexcept {
  model_.scopes.pop_back();
  recording_.reset();
  model_.managed->leave_forward();
  cast_.reset();
  span_.reset();
}

ForwardPause::ForwardPause(PreparedModel& model) : scopes_(model.scopes) {
  while (!model.scopes.empty()) model.scopes.back()->close();
}

void ForwardPause::resume() const {
  for (const auto* scope : scopes_) scope->open();
}

void outside_forward_scope(PreparedModel& model, c10::function_ref<void()> f) {
  const ForwardPause pause(model);
  f();
  pause.resume();
}

void in_forward_scope(PreparedModel& model, c10::function_ref<void()> forward) {
  const auto add_error_context = [&](c10::Error& error) {
    if (model.add_error_context) model.add_error_context(error);
  };
  with_error_context(add_error_context, [&] {
    const ForwardScope scope(model);
    with_error_context(add_error_context, forward);  // while gathered parameters are still in memory
  });
}

const std::shared_ptr<parallel::ManagedModel>& managed_by(const PreparedModel& model) { return model.managed; }
GradNorm grad_norm_of(const PreparedModel& model) { return model.grad_norm(); }
void convert_input(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_input(tensor); }
void convert_output(const PreparedModel& model, at::Tensor& tensor) { model.policy.convert_output(tensor); }

namespace {

using Values = std::vector<std::pair<std::string, at::Tensor>>;

/// Replaces shards, and buffers that sharding has converted, by these values.
void put_back(torch::nn::Module& module, const Values& values) {
  const at::NoGradGuard no_grad;
  auto parameters = module.named_parameters();
  auto buffers = module.named_buffers();
  for (const auto& [name, value] : values) {
    auto* parameter = parameters.find(name);
    auto* tensor = parameter ? parameter : buffers.find(name);
    if (!tensor || hook::storage_of(value) == hook::storage_of(*tensor)) continue;
    tensor->set_data(value);
    if (parameter) tensor->mutable_grad().reset();
  }
}

}  // namespace

void release_model(Model<torch::nn::Module>& model) {
  const auto module = model.ptr();
  const std::weak_ptr<PreparedModel> prepared = model.prepared();
  // Checked before anything changes, so that the module can be released once the other handle is gone.
  if (prepared.use_count() > 1)
    throw UsageError(
        "MU439",
        "a module that another Trainer has prepared cannot be prepared again, since the program still holds "
        "a handle of it, such as a copy of trainer.model(): let go of it first");
  auto& managed = *model.prepared()->managed;
  const auto values = managed.sharded() ? managed.full_state(/*main_only=*/false) : Values();
  model = {};
  put_back(*module, values);
}

void prepare_for_archive(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) hook::require_values(parameter, "torch::save");
}

}  // namespace muster::runtime

namespace muster {
namespace {

// train() also sets all descendants: parents go first, then each child gets its own mode back.
void restore(const std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>>& modes) {
  for (const auto& [module, training] : modes)
    if (module->is_training() != training) module->train(training);
}

}  // namespace

EvaluationScope::EvaluationScope(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  for (const auto& module : modules) {
    const auto children = module->modules(/*include_self=*/false);
    before_.emplace_back(module, module->is_training());
    for (const auto& child : children) before_.emplace_back(child, child->is_training());
  }
  try {
    for (const auto& module : modules) module->eval();
  } catch (...) {
    restore(before_);
    throw;
  }
}

EvaluationScope::~EvaluationScope() {
  try {
    restore(before_);
  } catch (const std::exception& error) {
    log::warning("the end of an evaluation could not restore the mode of a module: ", error.what());
  }
}

}  // namespace muster
