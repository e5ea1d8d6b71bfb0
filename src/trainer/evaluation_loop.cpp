#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>

#include "core.h"

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

/// Hooks and options of one kind of evaluation.
struct EvaluationNames {
  Hook eval_hook;
  void (M::*eval)();
  BothHook start, epoch_start, epoch_end, end;
  Hook batch_start_hook;
  void (C::*batch_start)(Trainer&, M&, const BatchView&, BatchPlace);
  Hook step;
  Hook batch_end_hook;
  void (C::*batch_end)(Trainer&, M&, const StepOutput&, const BatchView&, BatchPlace);
  Hook train_hook;
  void (M::*train)();
  const char* limit;
};

constexpr EvaluationNames kValidation = {
    on_validation_model_eval,
    &M::on_validation_model_eval,
    {on_validation_start, &C::on_validation_start, &M::on_validation_start},
    {on_validation_epoch_start, &C::on_validation_epoch_start, &M::on_validation_epoch_start},
    {on_validation_epoch_end, &C::on_validation_epoch_end, &M::on_validation_epoch_end},
    {on_validation_end, &C::on_validation_end, &M::on_validation_end},
    on_validation_batch_start,
    &C::on_validation_batch_start,
    validation_step,
    on_validation_batch_end,
    &C::on_validation_batch_end,
    on_validation_model_train,
    &M::on_validation_model_train,
    "limit_val_batches"};
constexpr EvaluationNames kTest = {on_test_model_eval,
                                   &M::on_test_model_eval,
                                   {on_test_start, &C::on_test_start, &M::on_test_start},
                                   {on_test_epoch_start, &C::on_test_epoch_start, &M::on_test_epoch_start},
                                   {on_test_epoch_end, &C::on_test_epoch_end, &M::on_test_epoch_end},
                                   {on_test_end, &C::on_test_end, &M::on_test_end},
                                   on_test_batch_start,
                                   &C::on_test_batch_start,
                                   test_step,
                                   on_test_batch_end,
                                   &C::on_test_batch_end,
                                   on_test_model_train,
                                   &M::on_test_model_train,
                                   "limit_test_batches"};
constexpr EvaluationNames kPredict = {on_predict_model_eval,
                                      &M::on_predict_model_eval,
                                      {on_predict_start, &C::on_predict_start, &M::on_predict_start},
                                      {on_predict_epoch_start, &C::on_predict_epoch_start, &M::on_predict_epoch_start},
                                      {on_predict_epoch_end, &C::on_predict_epoch_end, &M::on_predict_epoch_end},
                                      {on_predict_end, &C::on_predict_end, &M::on_predict_end},
                                      on_predict_batch_start,
                                      &C::on_predict_batch_start,
                                      predict_step,
                                      on_predict_batch_end,
                                      &C::on_predict_batch_end,
                                      on_predict_model_train,
                                      &M::on_predict_model_train,
                                      "limit_predict_batches"};

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

const BatchLimit& evaluation_limit(const TrainerOptions& options, StepKind kind) {
  if (kind == StepKind::test) return options.limit_test_batches;
  return kind == StepKind::predict ? options.limit_predict_batches : options.limit_val_batches;
}

void Core::validate_in_fit() {
  const auto every = options.reload_dataloaders_every_n_epochs;
  const bool resumed = progress.point == SavePoint::in_validation;
  if (every > 0 && !resumed && (!validation_loaded_ || *validation_loaded_ / every != progress.epoch / every))
    forget_data(StepKind::validation);
  if (window_.begins && !resumed)
    hooks.module(on_validation_model_zero_grad, &TrainerModule::on_validation_model_zero_grad);
  evaluation_epoch(StepKind::validation, std::nullopt, nullptr);
  stop.agree();
  clock_.note_validation(RunClock::now());
}

std::vector<Metrics> Core::evaluate(RunInputs inputs, StepKind kind, const EvaluateOptions& how,
                                    const KeepOutput& keep) {
  static constexpr std::array kStages = {Stage::fit, Stage::validate, Stage::test, Stage::predict};
  std::vector<Metrics> results;
  refuse_nested_run(inputs);
  run(std::move(inputs), kStages[static_cast<std::size_t>(kind)], [&] {
    if (const auto folder = resolved(how.ckpt_path, /*required=*/true); !folder.empty()) load_weights(folder);
    inputs_.module->zero_grad();
    if (!evaluation_limit(options, kind).none()) results = evaluation_epoch(kind, std::nullopt, keep);
  });
  return results;
}

std::vector<Metrics> Core::evaluation_epoch(StepKind kind, std::optional<int64_t> most, const KeepOutput& keep) {
  const auto& names = names_of(kind);
  const auto both = [&](const BothHook& hook) { hooks.both(hook.hook, hook.of_callbacks, hook.of_module); };
  auto& prepared = setup_data(kind);
  const auto modes = modes_of(*inputs_.module);
  modes_ = modes_text();
  auto keeps_modes = c10::make_scope_exit([&] { restore(modes); });  // also if a hook throws
  hooks.module(names.eval_hook, names.eval);
  const c10::NoGradGuard no_grad;
  // Not in fit(): autograd may still need tensors that evaluation makes, and collectives refuse inference tensors.
  std::optional<c10::InferenceMode> inference;
  if (options.inference_mode && stage_ != Stage::fit && runtime.world_size() == 1) inference.emplace();
  const auto context = context_;
  const auto place = place_;
  const auto finish = c10::make_scope_exit([&] { evaluating_ = false, context_ = context, place_ = place; });
  evaluating_ = true;
  context_ = {};
  const bool validates_training = stage_ == Stage::fit && !sanity_checking;
  const bool resumed = validates_training && progress.point == SavePoint::in_validation;
  if (!resumed) {
    progress.validation = {};
    if (validates_training) progress.point = SavePoint::in_validation;
    evaluation_book_.begin();
    both(names.start);
    both(names.epoch_start);
  }
  const auto from = progress.validation;
  for (auto i = static_cast<std::size_t>(from.dataloader_idx); i < prepared.loaders.size(); ++i)
    evaluate_loader(kind, i, i == static_cast<std::size_t>(from.dataloader_idx) ? from.batch_idx : 0, most, keep);
  context_ = {.step = context_.step + 1};
  evaluation_book_.close(runtime.group());
  both(names.epoch_end);
  evaluation_book_.close(runtime.group());
  log_epoch(evaluation_book_, experiment.step());
  hooks.some_callbacks(names.end.hook, HookCalls::is_no_watcher, names.end.of_callbacks);
  hooks.module(names.end.hook, names.end.of_module);
  const auto watch = [&](Callback& callback) { (callback.*names.end.of_callbacks)(trainer, *inputs_.module); };
  call_monitors(validates_training ? SavePoint::validation_end : progress.point, names.end.hook, watch);
  if (inputs_.sets_train_mode[static_cast<std::size_t>(kind)]) {
    keeps_modes.release();
    hooks.module(names.train_hook, names.train);
  }
  modes_.clear();
  return evaluation_book_.results(prepared.loaders.size());
}

void Core::evaluate_loader(StepKind kind, std::size_t index, int64_t first, std::optional<int64_t> most,
                           const KeepOutput& keep) {
  auto& prepared = setup_data(kind);
  auto& loader = *prepared.loaders[index];
  const auto& part = prepared.combined.parts[index];
  auto limit = batches_of(evaluation_limit(options, kind), loader.known_size(), names_of(kind).limit);
  if (most) limit = std::min(limit.value_or(*most), *most);
  loader.set_epoch(progress.epoch);
  loader.seek(first);
  const auto pass = loader.begin_pass();
  evaluated_pass_ = pass.get();
  const auto over = c10::make_scope_exit([&] { evaluated_pass_ = nullptr; });
  for (int64_t i = first; !limit || i < *limit; ++i) {
    auto* box = pass->next();
    if (!box) break;
    place_ = {.batch_idx = i, .dataloader_idx = static_cast<int64_t>(index)};
    context_.loader = prepared.loaders.size() > 1 ? place_.dataloader_idx : -1;
    ++context_.step;
    filler_ = loader.samples().local_real == 0;
    evaluation_batch(kind, *part.steps, part.batch_in(*box), keep);
    filler_ = false;
    if (progress.point == SavePoint::in_validation) handle_votes();
  }
}

void Core::evaluation_batch(StepKind kind, const StepTable& steps, void* batch, const KeepOutput& keep) {
  const auto& names = names_of(kind);
  auto& module = *inputs_.module;
  transfer(steps, batch, place_.dataloader_idx);
  const BatchView view(batch, steps.type);
  context_.batch_size = view.size();
  if (!filler_) {
    hooks.callbacks(names.batch_start_hook, names.batch_start, view, place_);
    if (steps.start) hooks.run(names.batch_start_hook, [&] { steps.start(module, batch, place_); });
  }
  StepOutput output;
  if (filler_) evaluation_book_.metrics().begin_filler();
  const auto forward = [&] { output = steps.step(module, batch, place_); };
  hooks.run(names.step, [&] { runtime::in_forward_scope(*trained_module->model.prepared(), forward); });
  progress.validation = {.batch_idx = place_.batch_idx + 1, .dataloader_idx = place_.dataloader_idx};
  if (filler_) return evaluation_book_.metrics().end_filler();
  hooks.callbacks(names.batch_end_hook, names.batch_end, output, view, place_);
  if (steps.end) hooks.run(names.batch_end_hook, [&] { steps.end(module, output, batch, place_); });
  log_evaluation_step(kind);
  if (keep) keep(output, place_.dataloader_idx);
}

}  // namespace muster::trainer
