#include <algorithm>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include "base/log.h"
#include "core.h"
#include "monitor.h"
#include "muster/base/error.h"
#include "muster/runtime/loop_access.h"
#include "muster/runtime/outside_forward.h"

namespace muster::trainer {
namespace {

/// Thrown to leave the step() of an optimizer that runs the closure, if there are no gradients.
struct NoGradients {};

[[noreturn]] void refuse_unused_closure(const torch::optim::Optimizer& optimizer) {
  throw UsageError("MU590", c10::demangle(typeid(optimizer).name()) +
                                "::step() did not call its closure, which runs training_step() and backward in "
                                "automatic optimization: call it there, or set automatic_optimization = false in the "
                                "module's constructor");
}

[[noreturn]] void refuse_windows(const torch::optim::Optimizer& optimizer) {
  throw UsageError("MU591", c10::demangle(typeid(optimizer).name()) +
                                "::step() called its closure again in an accumulation window, where it runs only the "
                                "window's last batch: set accumulate_grad_batches = 1, and a larger batch size");
}

}  // namespace

void refuse_missing_loss() {
  throw UsageError("MU520",
                   "training_step() returned a map without \"loss\": name the loss so; to leave a batch out, return an "
                   "empty std::optional of the map");
}

StepOutput Core::training_step(const StepTable& steps, void* batch) {
  StepOutput output;
  hooks.run(Hook::training_step, [&] {
    runtime::in_forward_scope(*trained_module->model.prepared(),
                              [&] { output = steps.step(*inputs_.module, batch, place_); });
  });
  return output;
}

void Core::optimize(const StepTable& steps, void* batch, bool last, StepOutput& output) {
  if (options.accumulate_grad_batches == 1) return optimize_micro_batch(steps, batch, true, last, output);
  auto window = runtime.accumulate(trained_module->model);
  if (last) window.end_window();
  optimize_micro_batch(steps, batch, window.sync_gradients(), last, output);
}

void Core::optimize_micro_batch(const StepTable& steps, void* batch, bool ends_window, bool last, StepOutput& output) {
  const auto index = place_.batch_idx;
  auto& handles = trained_module->handles;
  bool evaluated = false;
  const auto closure = [&]() -> at::Tensor {
    const at::AutoGradMode with_grad(true);
    if (std::exchange(evaluated, true) && options.accumulate_grad_batches > 1) refuse_windows(handles.front().inner());
    output = training_step(steps, batch);
    if (window_.begins && !handles.empty()) {
      auto& optimizer = handles.front();
      hooks.both(Hook::on_before_zero_grad, &Callback::on_before_zero_grad, &TrainerModule::on_before_zero_grad,
                 optimizer);
      hooks.module(Hook::optimizer_zero_grad, &TrainerModule::optimizer_zero_grad, progress.epoch, index, optimizer);
    }
    if (output.loss.defined()) {
      window_.has_loss = true;
      backward(output.loss);
    }
    return output.loss;
  };
  for (const auto& trained : trained_module->optimizers) trained->updated = false;
  if (ends_window && !handles.empty())
    hooks.module(Hook::optimizer_step, &TrainerModule::optimizer_step, progress.epoch, index, handles.front(),
                 ModuleOptimizer::Closure(closure));
  else closure();
  window_.begins = ends_window;
  if (ends_window) window_.has_loss = false;
  for (const auto& trained : trained_module->optimizers) trained->step_schedules(last);
}

void Core::backward(const at::Tensor& loss) {
  hooks.both(Hook::on_before_backward, &Callback::on_before_backward, &TrainerModule::on_before_backward, loss);
  hooks.module(Hook::backward, &TrainerModule::backward, loss);
  hooks.both(Hook::on_after_backward, &Callback::on_after_backward, &TrainerModule::on_after_backward);
}

void Core::manual_backward(const at::Tensor& loss) {
  if (inputs_.module->automatic_optimization)
    throw UsageError(
        "MU448",
        "manual_backward() was called in automatic optimization, where the Trainer calls backward with the "
        "loss that training_step() returns: return it, or set automatic_optimization = false in the "
        "constructor");
  backward(loss);
}

runtime::NoSyncScope Core::no_sync() {
  if (inputs_.module->automatic_optimization)
    throw UsageError("MU448",
                     "no_sync() was called in automatic optimization, where accumulate_grad_batches says which batches "
                     "communicate: set that, or automatic_optimization = false in the constructor");
  return runtime.no_sync(trained_module->model);
}

/// Whether any rank had a loss in the window; the flags of the reduction tell what other ranks had.
bool Core::some_rank_has_loss(const TrainedOptimizer& trained) {
  return runtime.world_size() == 1 ? window_.has_loss : any_rank_has_gradients(runtime, trained.prepared);
}

/// Runs the closure and the hooks that may change gradients before an update. Returns false if no rank has gradients.
bool Core::make_gradients(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure, at::Tensor& loss) {
  const bool automatic = inputs_.module->automatic_optimization;
  loss = closure ? closure() : at::Tensor();
  if (automatic && !loss.defined() && !some_rank_has_loss(trained)) return false;
  runtime.unscale_gradients(trained.prepared);
  ModuleOptimizer handle(trained);
  hooks.both(Hook::on_before_optimizer_step, &Callback::on_before_optimizer_step,
             &TrainerModule::on_before_optimizer_step, handle);
  if (automatic) {
    const auto clip =
        options.gradient_clip_val
            ? std::optional(GradientClipOptions{options.gradient_clip_algorithm, *options.gradient_clip_val})
            : std::nullopt;
    hooks.module(Hook::configure_gradient_clipping, &TrainerModule::configure_gradient_clipping, handle, clip);
  }
  return true;
}

/// The optimizer's own step() decides when and how often the closure runs. Returns false if no rank has gradients.
bool Core::step_by_closure(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure, at::Tensor& loss) {
  const auto& model = trained_module->model;
  const bool automatic = inputs_.module->automatic_optimization;
  bool evaluated = false;
  const auto evaluate = [&] {
    at::Tensor own;
    evaluated = true;
    const auto make = [&] {
      if (!make_gradients(trained, closure, own)) throw NoGradients();
    };
    if (automatic) make();
    else runtime::in_forward_scope(*model.prepared(), make);  // training_step()'s forward scope is closed here
    return own;
  };
  try {
    outside_forward(model, [&] { loss = trained.prepared.step(evaluate); });
  } catch (const NoGradients&) {
    return false;
  }
  if (automatic && !evaluated) refuse_unused_closure(*trained.own);
  return true;
}

at::Tensor Core::step(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure) {
  const bool automatic = inputs_.module->automatic_optimization;
  if (automatic && !closure)
    throw UsageError("MU448",
                     "an optimizer was stepped without closure in automatic optimization, where the closure runs "
                     "training_step() and backward: call optimizer.step(closure) in optimizer_step()");
  at::Tensor loss;
  if (closure && evaluates_closure(trained.prepared)) {
    if (!step_by_closure(trained, closure, loss)) return {};
  } else {
    if (!make_gradients(trained, closure, loss)) return loss;
    trained.wait_for_step();  // the host waits for the previous step, while this backward is queued behind it
    outside_forward(trained_module->model, [&] { trained.prepared.step(); });
  }
  trained.note_step();
  return loss;
}

/// Warns of schedules that were made for another number of steps than this training has.
void Core::compare_schedules() {
  if (!inputs_.module->automatic_optimization || options.fast_dev_run > 0 || options.max_time.value()) return;
  for (const auto& trained : trained_module->optimizers)
    for (const auto& schedule : trained->schedules) {
      const bool by_step = schedule.config.interval == ScheduleInterval("step");
      const auto steps = by_step                 ? estimated_stepping_batches()
                         : options.max_steps < 0 ? StopRule(options).max_epochs
                                                 : std::nullopt;
      if (steps) expect_steps(schedule.scheduler, *steps / schedule.config.frequency);
    }
}

void Core::clip(ModuleOptimizer& optimizer, const GradientClipOptions& how) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.trained_->own->param_groups())  // avoids reading a rate
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (how.algorithm == ClipAlgorithm("norm")) runtime.clip_grad_norm_(parameters, how.value);
  else runtime.clip_grad_value_(parameters, how.value);
}

void Core::step_plateau_schedules(ScheduleInterval interval) {
  if (!inputs_.module->automatic_optimization) return;
  for (const auto& trained : trained_module->optimizers) {
    // A batch whose update was skipped, for example by loss scaling, does not step these schedules either.
    const bool by_step = interval == ScheduleInterval("step");
    const auto watches = [&](const auto& one) { return one.plateau && one.config.interval == interval; };
    if (std::ranges::none_of(trained->schedules, watches)) continue;
    if (by_step && std::exchange(trained->plateau_steps, trained->made_steps()) == trained->steps) continue;
    for (const auto& schedule : trained->schedules) {
      if (!schedule.plateau || schedule.config.interval != interval) continue;
      const auto count = by_step ? trained->steps : progress.epoch + 1;
      if (count % schedule.config.frequency != 0) continue;
      const auto& metrics = latest.get();
      if (const auto value = value_on_main_rank(runtime, metrics, schedule.config.monitor)) {
        hooks.module(Hook::lr_scheduler_step, &TrainerModule::lr_scheduler_step, schedule.scheduler, value);
        continue;
      }
      const auto missing = not_logged("ReduceLROnPlateau", schedule.config.monitor, metrics);
      if (schedule.config.strict) throw UsageError("MU449", missing + "; log it, or set strict = false");
      log::warning(missing);
    }
  }
}

}  // namespace muster::trainer
