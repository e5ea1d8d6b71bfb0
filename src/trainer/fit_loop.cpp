#include <torch/csrc/autograd/anomaly_mode.h>

#include "base/log.h"
#include "checkpoints.h"
#include "limits.h"
#include "loops.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/loop_access.h"
#include "optimization.h"
#include "run.h"
#include "run_loaders.h"
#include "run_log.h"
#include "watchers.h"

namespace muster::trainer {
namespace {

/// Warns of a step without a loader, or a loader without a step: both are ignored.
void warn_of_missing_halves(const RunInputs& inputs, const TrainerOptions& options) {
  constexpr auto kind = static_cast<std::size_t>(StepKind::validation);
  if (options.limit_val_batches.none()) return;
  if (inputs.loaders[kind]) return;
  if (inputs.steps[kind] && inputs.unused_loaders[kind])
    log::warning(
        "val_dataloader() of the module is left out, since fit() was given a loader: give it one for "
        "validation, too, or none");
  else if (inputs.unused_loaders[kind])
    log::warning("val_dataloader() is left out: the module has no validation_step()");
  else if (inputs.steps[kind])
    log::warning("validation_step() is left out: there is no loader for it, nor a val_dataloader()");
}

/// Throws if epochs without batches would repeat forever.
void require_an_end(const TrainerOptions& options) {
  if (StopRule{options}.has_last_epoch()) return;
  throw UsageError("MU437",
                   "the loader for training gave no batch in a whole epoch, and without max_epochs nothing would end "
                   "training: give the loader data, or set max_epochs");
}

}  // namespace

void FitLoop::fit(const std::string& ckpt_path) {
  const auto& options = run_.options;
  auto& hooks = run_.hooks;
  std::optional<torch::autograd::DetectAnomalyGuard> anomalies;
  if (options.detect_anomaly) anomalies.emplace();
  run_.clock.begin();
  validation_interval_passed_ = false;
  if (run_.runtime.is_main()) warn_of_missing_halves(run_.inputs(), options);

  const auto folder =
      ckpt_path.empty() ? checkpoints_.after_restart() : checkpoints_.resolved(ckpt_path, /*required=*/false);
  if (folder.empty()) optimization_.set_up();
  else checkpoints_.load_for_fit(folder);
  hooks.both(Hook::on_fit_start, &Callback::on_fit_start, &TrainerModule::on_fit_start);
  run_.module().zero_grad();

  const bool resumes_in_epoch = checkpoints_.resuming() && run_.progress.batches > 0;
  if (run_.validates() && options.num_sanity_val_steps != 0 && !resumes_in_epoch) sanity_check();

  if (!options.limit_train_batches.none() && prepare_training()) {
    const bool in_epoch = run_.progress.batches > 0;
    hooks.both(Hook::on_train_start, &Callback::on_train_start, &TrainerModule::on_train_start);
    run_.stop.agree();
    if (in_epoch) run_epoch();
    while (!done()) run_epoch();
    hooks.both(Hook::on_train_end, &Callback::on_train_end, &TrainerModule::on_train_end);
  }
  hooks.both(Hook::on_fit_end, &Callback::on_fit_end, &TrainerModule::on_fit_end);
  votes_.handle();
}

void FitLoop::sanity_check() {
  run_.set_phase(Phase::sanity_check);
  const KeptRandomStates kept(run_.runtime);
  run_.hooks.callbacks(Hook::on_sanity_check_start, &Callback::on_sanity_check_start);
  const auto steps = run_.options.num_sanity_val_steps;
  evaluation_.run(StepKind::validation, steps < 0 ? std::nullopt : std::optional(steps), nullptr);
  run_.hooks.callbacks(Hook::on_sanity_check_end, &Callback::on_sanity_check_end);
  log_.latest.clear();
  run_.set_phase(Phase::setup);
}

/// Makes the loaders, and completes the epoch at whose end training resumes. Returns false if nothing is left to train.
bool FitLoop::prepare_training() {
  const auto& progress = run_.progress;
  const bool resumes = checkpoints_.resuming();
  loaders_.of(StepKind::training);
  if (run_.validates_in_epoch()) loaders_.of(StepKind::validation);
  if (resumes) checkpoints_.load_progress();
  run_.set_phase(Phase::training);
  if (resumes) resume_epoch_end();
  // An epoch that is resumed at its start makes its loaders again, as it would have without the interruption.
  first_epoch_ = resumes ? -1 : progress.epoch;
  checkpoints_.end_resume();
  read_clock();
  run_.clock.note_validation();
  run_.stop.agree();
  if (const auto why = progress.batches > 0 ? std::string() : nothing_to_train(); !why.empty()) {
    if (run_.runtime.is_main()) log::warning("fit() trains nothing: ", why);
    watchers_.finish_savers();
    return false;
  }
  log_.warn_log_every_n_steps(loaders_.training_batches());
  optimization_.compare_schedules();
  return true;
}

/// Why there is nothing to train; empty if there is something.
std::string FitLoop::nothing_to_train() {
  const auto& options = run_.options;
  const auto& progress = run_.progress;
  if (StopRule{options}.epochs_done(progress.epoch))
    return formatted("max_epochs is {}, and this Trainer has run {}", *options.max_epochs, progress.epoch);
  if (steps_done())
    return formatted("max_steps is {}, and this Trainer has made {}", options.max_steps, progress.global_step);
  if (stops()) return "it was asked to stop before it began, or before the checkpoint was saved";
  return loaders_.training_batches() == 0 ? "its loader has no batch" : "";
}

void FitLoop::run_epoch() {
  const auto& options = run_.options;
  auto& progress = run_.progress;
  const bool resumed = progress.batches > 0;
  if (!resumed) {
    loaders_.renew_training(first_epoch_);
    run_.hooks.both(Hook::on_train_epoch_start, &Callback::on_train_epoch_start, &TrainerModule::on_train_epoch_start);
    run_.stop.agree();
  }
  auto& prepared = loaders_.of(StepKind::training);
  const auto limit = loaders_.training_batches();
  const auto interval = validation_interval(options.val_check_interval, limit, !options.check_val_every_n_epoch);
  if (resumed) {
    resume_batch_end(interval);
  } else {
    for (const auto& one : prepared.loaders) {
      one->set_epoch(progress.epoch);
      one->seek(0);  // a loaded position may be the end of the last epoch
    }
  }
  {
    TrainingPass pass(prepared, progress.epoch, progress.batches);
    while (!(limit && progress.batches >= *limit) && !steps_done() && !stops()) {
      if (optimization_.window_begins()) optimization_.note_window_begin();
      void* batch = pass.next();
      if (!batch) {
        if (progress.batches == 0) require_an_end(options);
        break;
      }
      const bool last = pass.at_end() || (limit && progress.batches + 1 == *limit);
      const BatchPlace place = {.batch_idx = progress.batches, .dataloader_idx = pass.loader()};
      if (!run_batch(pass.steps(), batch, place, last)) break;
      finish_batch(interval);
    }
  }
  end_epoch();
}

/// Returns false if the module skips the rest of the epoch.
bool FitLoop::run_batch(const StepTable& steps, void* batch, BatchPlace place, bool last) {
  const auto& options = run_.options;
  auto& hooks = run_.hooks;
  auto& module = run_.module();
  auto& progress = run_.progress;
  progress.point = SavePoint::in_batch;
  loaders_.transfer(steps, batch, place.dataloader_idx);
  const BatchView view(batch, steps.type);
  log_.begin_training_batch(view.size());
  hooks.callbacks(Hook::on_train_batch_start, &Callback::on_train_batch_start, view, place);
  if (steps.start &&
      hooks.run(Hook::on_train_batch_start, [&] { return steps.start(module, batch, place); }) == EpochFlow::skip_rest)
    return progress.point = SavePoint::none, false;
  auto output = optimization_.train_on(steps, batch, place, last);
  if (output.loss.defined()) {
    output.loss = output.loss.detach();
    if (module.automatic_optimization && options.accumulate_grad_batches > 1)
      output.loss = output.loss / options.accumulate_grad_batches;
  }
  ++progress.batches;  // before the callbacks that save
  ++progress.total_batches;
  progress.last_batch = last;
  progress.point = SavePoint::batch_hooks;
  hooks.callbacks_before(Hook::on_train_batch_end, &Callback::on_train_batch_end, output, view, place);
  if (steps.end) hooks.run(Hook::on_train_batch_end, [&] { steps.end(module, output, batch, place); });
  if (optimization_.window_begins()) log_.log_training_step();
  watchers_.call(SavePoint::batch_end, Hook::on_train_batch_end,
                 [&](Callback& callback) { callback.on_train_batch_end(run_.trainer, module, output, view, place); });
  return true;
}

/// Does what follows a batch and precedes the next one.
void FitLoop::finish_batch(const std::optional<int64_t>& interval) {
  run_.progress.point = SavePoint::batch_done;
  if (optimization_.window_begins()) votes_.handle();
  read_clock();
  if (validation_due(interval)) validate();
  finish_validation();
}

void FitLoop::validate() {
  const bool resumed = run_.progress.point == SavePoint::in_validation;
  if (!resumed) loaders_.renew_validation();
  if (optimization_.window_begins() && !resumed)
    run_.hooks.module(Hook::on_validation_model_zero_grad, &TrainerModule::on_validation_model_zero_grad);
  evaluation_.run(StepKind::validation, std::nullopt, nullptr);
  run_.stop.agree();
  run_.clock.note_validation();
}

void FitLoop::finish_validation() {
  if (optimization_.window_begins()) {
    optimization_.step_plateau_schedules("step");
    log_.experiment.count_step();
  }
  run_.progress.point = SavePoint::none;
}

void FitLoop::end_epoch() {
  auto& progress = run_.progress;
  run_.preparation->wait_for_steps();
  log_.end_batches();
  log_.close(log_.training);
  progress.epoch_done = true;
  progress.point = SavePoint::epoch_hooks;
  run_.hooks.callbacks_before(Hook::on_train_epoch_end, &Callback::on_train_epoch_end);
  run_.hooks.module(Hook::on_train_epoch_end, &TrainerModule::on_train_epoch_end);
  finish_epoch();
  run_.stop.agree();
  ++progress.epoch;
  progress.batches = 0;
  progress.epoch_done = progress.last_batch = false;
  progress.point = SavePoint::none;
}

/// Does what follows the hooks at the end of an epoch.
void FitLoop::finish_epoch() {
  log_.close(log_.training);
  log_.log_training_epoch();
  optimization_.step_plateau_schedules("epoch");  // before a checkpoint is saved, which holds the next epoch's rates
  watchers_.call(SavePoint::epoch_end, Hook::on_train_epoch_end,
                 [&](Callback& callback) { callback.on_train_epoch_end(run_.trainer, run_.module()); });
}

/// Does what remained of the end of an epoch when the checkpoint was saved.
void FitLoop::resume_epoch_end() {
  auto& progress = run_.progress;
  if (progress.point != SavePoint::epoch_hooks && progress.point != SavePoint::epoch_end) return;
  --progress.epoch;
  progress.epoch_done = true;
  if (progress.point == SavePoint::epoch_hooks) finish_epoch();
  else watchers_.continue_call();
  ++progress.epoch;
  progress.epoch_done = false;
  progress.point = SavePoint::none;
}

/// Does what remained after the batch at which the checkpoint was saved.
void FitLoop::resume_batch_end(const std::optional<int64_t>& interval) {
  auto& progress = run_.progress;
  if (progress.point == SavePoint::batch_hooks) {
    if (optimization_.window_begins()) log_.log_training_step();
    progress.point = SavePoint::batch_end;
  }
  const auto point = progress.point;
  if (point == SavePoint::batch_end || point == SavePoint::validation_end) watchers_.continue_call();
  if (point == SavePoint::batch_end || point == SavePoint::batch_done) return finish_batch(interval);
  if (point == SavePoint::in_validation) validate();
  if (point == SavePoint::in_validation || point == SavePoint::validation_end) finish_validation();
  progress.point = SavePoint::none;
}

bool FitLoop::validation_due(const std::optional<int64_t>& interval) {
  const auto& options = run_.options;
  const auto& progress = run_.progress;
  if (!run_.validates_in_epoch()) return false;
  if (stops()) return true;
  if (options.val_check_interval.time()) return validation_interval_passed_;
  if (!interval) return progress.last_batch;
  return (options.check_val_every_n_epoch ? progress.batches : progress.total_batches) % *interval == 0;
}

/// The main rank's clock decides for all ranks.
void FitLoop::read_clock() {
  const auto &most = run_.options.max_time.value(), &interval = run_.options.val_check_interval.time().value();
  if (!most && !interval) return;
  constexpr int64_t kOver = 1, kValidate = 2;
  int64_t says = (most && run_.clock.elapsed() >= *most ? kOver : 0) |
                 (interval && run_.clock.since_validation() >= *interval ? kValidate : 0);
  if (run_.runtime.world_size() > 1) says = run_.runtime.broadcast_object(says);
  if (says & kOver) run_.stop.set(true);
  validation_interval_passed_ = (says & kValidate) != 0;
}

/// Waits for the last step only if it could be the last of the run.
bool FitLoop::steps_done() {
  const StopRule rule{run_.options};
  return rule.steps_done(run_.progress.global_step + run_.preparation->pending_steps()) &&
         rule.steps_done(run_.global_step());
}

/// Whether ranks have agreed on a stop that the minima allow.
bool FitLoop::stops() {
  const auto epochs = run_.progress.epoch + (run_.progress.epoch_done ? 1 : 0);
  return run_.stop.agreed() && StopRule{run_.options}.may_stop(epochs, run_.global_step());
}

bool FitLoop::done() { return StopRule{run_.options}.epochs_done(run_.progress.epoch) || steps_done() || stops(); }

}  // namespace muster::trainer
