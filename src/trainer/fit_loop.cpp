#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "base/log.h"
#include "core.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/runtime/loop_access.h"
#include "muster/trainer/on_exception_checkpoint.h"
#include "muster/trainer/terminated.h"

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

}  // namespace

void Core::fit(RunInputs inputs, const FitOptions& how) {
  refuse_nested_run(inputs);
  stop.begin();
  auto begins = how;
  if (begins.ckpt_path.empty() && has_callback<OnExceptionCheckpoint>(options.callbacks)) begins.ckpt_path = "last";
  latest.clear();
  progress.batches = 0;  // may be left from an epoch that an exception ended
  progress.epoch_done = progress.last_batch = false;
  if (options.fast_dev_run == 0) termination_.emplace(runtime);
  const auto finish = c10::make_scope_exit([&] { termination_.reset(); });
  run(std::move(inputs), Stage::fit, [&] { fit_impl(begins); });
  if (termination_ && termination_->signals().received() == SIGTERM) throw Terminated();
}

void Core::fit_impl(const FitOptions& how) {
  std::optional<torch::autograd::DetectAnomalyGuard> anomalies;
  if (options.detect_anomaly) anomalies.emplace();
  clock_.begin(RunClock::now());
  validation_interval_passed_ = false;
  if (runtime.is_main()) warn_of_missing_halves(inputs_, options);
  const auto folder = how.ckpt_path.empty() ? checkpoint_after_restart() : resolved(how.ckpt_path, /*required=*/false);
  if (folder.empty()) set_up_optimizers();
  else load_for_fit(folder);
  hooks.both(Hook::on_fit_start, &Callback::on_fit_start, &TrainerModule::on_fit_start);
  inputs_.module->zero_grad();
  const bool in_epoch = resumed_checkpoint_ && progress.batches > 0;
  if (validates() && options.num_sanity_val_steps != 0 && !in_epoch) sanity_check();
  if (!options.limit_train_batches.none()) train();
  hooks.both(Hook::on_fit_end, &Callback::on_fit_end, &TrainerModule::on_fit_end);
  handle_votes();
}

bool Core::validates() const {
  const auto kind = static_cast<std::size_t>(StepKind::validation);
  return inputs_.loaders[kind] && inputs_.steps[kind] && !options.limit_val_batches.none();
}

bool Core::validates_in_epoch() const {
  const auto& every = options.check_val_every_n_epoch;
  return validates() && (!every || (progress.epoch + 1) % *every == 0);
}

void Core::sanity_check() {
  sanity_checking = true;
  const KeptRandomStates kept(runtime);
  hooks.callbacks(Hook::on_sanity_check_start, &Callback::on_sanity_check_start);
  const auto steps = options.num_sanity_val_steps;
  evaluation_epoch(StepKind::validation, steps < 0 ? std::nullopt : std::optional(steps), nullptr);
  hooks.callbacks(Hook::on_sanity_check_end, &Callback::on_sanity_check_end);
  latest.clear();
  sanity_checking = false;
}

/// Waits for the last step only if it could be the last of the run.
bool Core::steps_done() {
  const StopRule rule(options);
  return rule.steps_done(progress.global_step + trained_module->pending_steps()) && rule.steps_done(global_step());
}

bool Core::done() {
  return StopRule(options).epochs_done(progress.epoch) || steps_done() || (stop.agreed() && may_stop());
}

bool Core::may_stop() {
  return StopRule(options).may_stop(progress.epoch + (progress.epoch_done ? 1 : 0), global_step());
}

/// Why there is nothing to train; empty if there is something.
std::string Core::nothing_to_train() {
  const StopRule rule(options);
  if (rule.epochs_done(progress.epoch))
    return formatted("max_epochs is {}, and this Trainer has run {}", *options.max_epochs, progress.epoch);
  if (steps_done())
    return formatted("max_steps is {}, and this Trainer has made {}", options.max_steps, progress.global_step);
  if (stop.agreed() && may_stop()) return "it was asked to stop before it began, or before the checkpoint was saved";
  return batches_of_pass(StepKind::training).front() == 0 ? "its loader has no batch" : "";
}

void Core::train() {
  setup_data(StepKind::training);
  if (validates_in_epoch()) setup_data(StepKind::validation);
  if (resumed_checkpoint_) load_progress();
  training = true;
  if (resumed_checkpoint_) resume_epoch_end();
  // An epoch that is resumed at its start makes its loaders again, as it would have without the interruption.
  first_epoch_ = resumed_checkpoint_ ? -1 : progress.epoch;
  resumed_checkpoint_.reset();
  read_clock();
  clock_.note_validation(RunClock::now());
  stop.agree();
  const bool in_epoch = progress.batches > 0;
  if (const auto why = in_epoch ? std::string() : nothing_to_train(); !why.empty()) {
    if (runtime.is_main()) log::warning("fit() trains nothing: ", why);
    return finish_savers();
  }
  warn_log_every_n_steps();
  compare_schedules();
  hooks.both(Hook::on_train_start, &Callback::on_train_start, &TrainerModule::on_train_start);
  stop.agree();
  if (in_epoch) training_epoch();
  while (!done()) training_epoch();
  hooks.both(Hook::on_train_end, &Callback::on_train_end, &TrainerModule::on_train_end);
}

/// The main rank's clock decides for all ranks.
void Core::read_clock() {
  const auto &most = options.max_time.value(), &interval = options.val_check_interval.time().value();
  if (!most && !interval) return;
  constexpr int64_t kOver = 1, kValidate = 2;
  const auto now = RunClock::now();
  int64_t says = (most && clock_.elapsed(now) >= *most ? kOver : 0) |
                 (interval && clock_.since_validation(now) >= *interval ? kValidate : 0);
  if (runtime.world_size() > 1) says = runtime.broadcast_object(says);
  if (says & kOver) stop.set(true);
  validation_interval_passed_ = (says & kValidate) != 0;
}

bool Core::validation_due(bool last, const std::optional<int64_t>& interval) {
  if (!validates_in_epoch()) return false;
  if (stop.agreed() && may_stop()) return true;
  if (options.val_check_interval.time()) return validation_interval_passed_;
  if (!interval) return last;
  return (options.check_val_every_n_epoch ? progress.batches : progress.total_batches) % *interval == 0;
}

}  // namespace muster::trainer
