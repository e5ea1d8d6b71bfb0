#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include "limits.h"
#include "loops.h"
#include "muster/runtime/loop_access.h"
#include "run.h"
#include "run_loaders.h"
#include "run_log.h"
#include "votes.h"
#include "watchers.h"

namespace muster::trainer {
namespace {

using M = TrainerModule;
using C = Callback;
using enum Hook;

/// A hook of both callbacks and the module.
struct BothHook {
  Hook hook;
  void (C::*of_callbacks)(Trainer&, M&);
  void (M::*of_module)();
};

/// A hook, and the function that it calls.
template <class F>
struct OneHook {
  Hook hook;
  F function;
};

/// Hooks and options of one kind of evaluation, in the order in which it calls them.
struct EvaluationNames {
  OneHook<void (M::*)()> eval;
  BothHook start, epoch_start;
  OneHook<void (C::*)(Trainer&, M&, const BatchView&, BatchPlace)> batch_start;
  Hook step;
  OneHook<void (C::*)(Trainer&, M&, const StepOutput&, const BatchView&, BatchPlace)> batch_end;
  BothHook epoch_end, end;
  OneHook<void (M::*)()> train;
  const char* limit;
};

constexpr EvaluationNames kValidation = {
    .eval = {on_validation_model_eval, &M::on_validation_model_eval},
    .start = {on_validation_start, &C::on_validation_start, &M::on_validation_start},
    .epoch_start = {on_validation_epoch_start, &C::on_validation_epoch_start, &M::on_validation_epoch_start},
    .batch_start = {on_validation_batch_start, &C::on_validation_batch_start},
    .step = validation_step,
    .batch_end = {on_validation_batch_end, &C::on_validation_batch_end},
    .epoch_end = {on_validation_epoch_end, &C::on_validation_epoch_end, &M::on_validation_epoch_end},
    .end = {on_validation_end, &C::on_validation_end, &M::on_validation_end},
    .train = {on_validation_model_train, &M::on_validation_model_train},
    .limit = "limit_val_batches"};
constexpr EvaluationNames kTest = {
    .eval = {on_test_model_eval, &M::on_test_model_eval},
    .start = {on_test_start, &C::on_test_start, &M::on_test_start},
    .epoch_start = {on_test_epoch_start, &C::on_test_epoch_start, &M::on_test_epoch_start},
    .batch_start = {on_test_batch_start, &C::on_test_batch_start},
    .step = test_step,
    .batch_end = {on_test_batch_end, &C::on_test_batch_end},
    .epoch_end = {on_test_epoch_end, &C::on_test_epoch_end, &M::on_test_epoch_end},
    .end = {on_test_end, &C::on_test_end, &M::on_test_end},
    .train = {on_test_model_train, &M::on_test_model_train},
    .limit = "limit_test_batches"};
constexpr EvaluationNames kPredict = {
    .eval = {on_predict_model_eval, &M::on_predict_model_eval},
    .start = {on_predict_start, &C::on_predict_start, &M::on_predict_start},
    .epoch_start = {on_predict_epoch_start, &C::on_predict_epoch_start, &M::on_predict_epoch_start},
    .batch_start = {on_predict_batch_start, &C::on_predict_batch_start},
    .step = predict_step,
    .batch_end = {on_predict_batch_end, &C::on_predict_batch_end},
    .epoch_end = {on_predict_epoch_end, &C::on_predict_epoch_end, &M::on_predict_epoch_end},
    .end = {on_predict_end, &C::on_predict_end, &M::on_predict_end},
    .train = {on_predict_model_train, &M::on_predict_model_train},
    .limit = "limit_predict_batches"};

const EvaluationNames& names_of(StepKind kind) {
  if (kind == StepKind::test) return kTest;
  return kind == StepKind::predict ? kPredict : kValidation;
}

/// Modes of all submodules, parents before their children.
using Modes = std::vector<std::pair<torch::nn::Module*, bool>>;

Modes modes_of(torch::nn::Module& module) {
  Modes modes;
  module.apply([&](torch::nn::Module& one) { modes.emplace_back(&one, one.is_training()); });
  return modes;
}

void restore(const Modes& modes) {
  for (const auto& [module, training] : modes) module->torch::nn::Module::train(training);
}

}  // namespace

std::vector<Metrics> EvaluationLoop::run(StepKind kind, std::optional<int64_t> most, const KeepOutput& keep) {
  const auto& names = names_of(kind);
  auto& hooks = run_.hooks;
  auto& progress = run_.progress;
  const auto both = [&](const BothHook& hook) { hooks.both(hook.hook, hook.of_callbacks, hook.of_module); };
  auto& prepared = loaders_.of(kind);
  const auto modes = modes_of(run_.module());
  run_.keep_modes();
  auto keeps_modes = c10::make_scope_exit([&] { restore(modes); });  // also if a hook throws
  hooks.module(names.eval.hook, names.eval.function);
  const c10::NoGradGuard no_grad;
  // Not in fit(): autograd may still need tensors that evaluation makes, and collectives refuse inference tensors.
  std::optional<c10::InferenceMode> inference;
  if (run_.options.inference_mode && !run_.is_fit() && run_.runtime.world_size() == 1) inference.emplace();
  const auto finish = c10::make_scope_exit([&, before = log_.begin_evaluation()] { log_.end_evaluation(before); });
  const bool validates_training = run_.is_fit() && !run_.sanity_checking();
  const bool resumed = validates_training && progress.point == SavePoint::in_validation;
  if (!resumed) {
    progress.validation = {};
    if (validates_training) progress.point = SavePoint::in_validation;
    log_.evaluation.begin();
    both(names.start);
    both(names.epoch_start);
  }
  const auto from = progress.validation;
  for (auto i = static_cast<std::size_t>(from.dataloader_idx); i < prepared.loaders.size(); ++i)
    run_loader(kind, i, i == static_cast<std::size_t>(from.dataloader_idx) ? from.batch_idx : 0, most, keep);
  log_.end_batches();
  log_.close(log_.evaluation);
  both(names.epoch_end);
  log_.close(log_.evaluation);
  log_.log_evaluation_epoch();
  hooks.callbacks_before(names.end.hook, names.end.of_callbacks);
  hooks.module(names.end.hook, names.end.of_module);
  const auto watch = [&](Callback& callback) { (callback.*names.end.of_callbacks)(run_.trainer, run_.module()); };
  watchers_.call(validates_training ? SavePoint::validation_end : progress.point, names.end.hook, watch);
  if (run_.inputs().sets_train_mode[static_cast<std::size_t>(kind)]) {
    keeps_modes.release();
    hooks.module(names.train.hook, names.train.function);
  }
  run_.forget_modes();
  return log_.evaluation.results(prepared.loaders.size());
}

void EvaluationLoop::run_loader(StepKind kind, std::size_t index, int64_t first, std::optional<int64_t> most,
                                const KeepOutput& keep) {
  auto& prepared = loaders_.of(kind);
  auto& loader = *prepared.loaders[index];
  const auto& part = prepared.combined.parts[index];
  auto limit = batches_of(evaluation_limit(run_.options, kind), loader.known_size(), names_of(kind).limit);
  if (most) limit = std::min(limit.value_or(*most), *most);
  loader.set_epoch(run_.progress.epoch);
  loader.seek(first);
  const auto pass = loader.begin_pass();
  pass_ = pass.get();
  const auto over = c10::make_scope_exit([&] { pass_ = nullptr; });
  for (int64_t i = first; !limit || i < *limit; ++i) {
    auto* box = pass->next();
    if (!box) break;
    const BatchPlace place = {.batch_idx = i, .dataloader_idx = static_cast<int64_t>(index)};
    const bool filler = loader.samples().local_real == 0;
    log_.begin_evaluation_batch(prepared.loaders.size() > 1 ? place.dataloader_idx : -1, filler);
    run_batch(kind, *part.steps, part.batch_in(*box), place, filler, keep);
    log_.end_evaluation_batch();
    if (run_.progress.point == SavePoint::in_validation) votes_.handle();
  }
}

void EvaluationLoop::run_batch(StepKind kind, const StepTable& steps, void* batch, BatchPlace place, bool filler,
                               const KeepOutput& keep) {
  const auto& names = names_of(kind);
  auto& hooks = run_.hooks;
  auto& module = run_.module();
  auto& metrics = log_.evaluation.metrics();
  loaders_.transfer(steps, batch, place.dataloader_idx);
  const BatchView view(batch, steps.type);
  log_.set_batch_size(view.size());
  if (!filler) {
    hooks.callbacks(names.batch_start.hook, names.batch_start.function, view, place);
    if (steps.start) hooks.run(names.batch_start.hook, [&] { steps.start(module, batch, place); });
  }
  StepOutput output;
  if (filler) metrics.begin_filler();
  const auto forward = [&] { output = steps.step(module, batch, place); };
  hooks.run(names.step, [&] { runtime::in_forward_scope(*run_.preparation->model.prepared(), forward); });
  run_.progress.validation = {.batch_idx = place.batch_idx + 1, .dataloader_idx = place.dataloader_idx};
  if (filler) return metrics.end_filler();
  hooks.callbacks(names.batch_end.hook, names.batch_end.function, output, view, place);
  if (steps.end) hooks.run(names.batch_end.hook, [&] { steps.end(module, output, batch, place); });
  log_.log_evaluation_step(kind, place.dataloader_idx);
  if (keep) keep(output, place.dataloader_idx);
}

std::vector<int64_t> EvaluationLoop::batch_indices() const { return pass_ ? pass_->indices() : std::vector<int64_t>(); }

}  // namespace muster::trainer
