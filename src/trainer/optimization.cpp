#include "optimization.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>

#include "base/log.h"
#include "limits.h"
#include "muster/base/error.h"
#include "muster/runtime/loop_access.h"
#include "muster/runtime/outside_forward.h"
#include "muster/schedule/schedulers.h"
#include "muster/tree/detail/named_fields.h"
#include "run.h"
#include "run_loaders.h"
#include "run_log.h"
#include "watchers.h"

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

bool is_plateau(const AnyLRScheduler& scheduler) {
  if (const auto* own = std::get_if<std::shared_ptr<LRScheduler>>(&scheduler.held()))
    return dynamic_cast<const ReduceLROnPlateau*>(own->get()) != nullptr;
  return std::holds_alternative<std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler>>(scheduler.held());
}

}  // namespace

void refuse_missing_loss() {
  throw UsageError("MU520",
                   "training_step() returned a map without \"loss\": name the loss so; to leave a batch out, return an "
                   "empty std::optional of the map");
}

State WindowBegin::state_dict() const {
  return State::Map{{"batches", batches},
                    {"loaders", tree::state_of(loaders)},
                    {"metric_objects", book->metrics().state_dict({}, /*values=*/false)},
                    {"total_batches", total_batches},
                    {"training", book->state_dict()}};
}

void WindowBegin::load_state_dict(const State& state, LatestMetrics& latest) {
  batches = state.at("batches").integer();
  total_batches = state.at("total_batches").integer();
  loaders.clear();
  for (const auto& one : state.at("loaders").list())
    loaders.push_back({.dataset = one.at("dataset").text(),
                       .epoch = one.at("epoch").integer(),
                       .samples = one.at("samples").integer(),
                       .seed = one.at("seed").as<uint64_t>()});
  book.emplace(latest);
  book->add_state_dict(state.at("training"));
  book->metrics().add_state_dict(state.at("metric_objects"));
}

void Optimization::set_up() {
  if (!run_.module().automatic_optimization) {
    const bool accumulates = run_.options.accumulate_grad_batches > 1;
    if (accumulates || run_.options.gradient_clip_val)
      throw UsageError("MU438", std::string(accumulates ? "accumulate_grad_batches" : "gradient_clip_val") +
                                    " is set, and the module optimizes by itself, so that it would have no effect: "
                                    "leave it out, and " +
                                    (accumulates ? "step every so many batches" : "call clip_gradients()") +
                                    " in training_step()");
  }
  run_.preparation->drop_optimizers();
  const auto configured = run_.hooks.module(Hook::configure_optimizers, &TrainerModule::configure_optimizers);
  if (run_.module().automatic_optimization && configured.entries().size() > 1)
    throw UsageError("MU443",
                     "configure_optimizers returned " + std::to_string(configured.entries().size()) +
                         " optimizers, and automatic optimization steps one: set automatic_optimization = false "
                         "in the module's constructor, and step them in training_step()");
  if (configured.entries().empty() && run_.runtime.is_main())
    log::warning("configure_optimizers returned no optimizer: nothing is updated, and global_step stays 0");
  for (const auto& entry : configured.entries()) {
    auto& updates = *run_.preparation->updates.emplace_back(
        std::make_unique<ScheduledUpdates>(run_, *this, entry.optimizer, run_.runtime.prepare(*entry.optimizer)));
    for (const auto& config : entry.schedulers) add_schedule(updates, config);
    run_.preparation->handles.emplace_back(updates);
  }
}

void Optimization::add_schedule(ScheduledUpdates& updates, const LRSchedulerConfig& config) {
  const bool plateau = is_plateau(config.scheduler);
  if (config.frequency < 1)
    throw UsageError("MU443",
                     "the frequency of a scheduler is " + std::to_string(config.frequency) + "; give at least 1");
  if (plateau && config.monitor.empty() && run_.module().automatic_optimization)
    throw UsageError(
        "MU443",
        "ReduceLROnPlateau watches a metric: return it as muster::LRSchedulerConfig{.monitor = \"val_loss\", "
        ".scheduler = ...}");
  std::visit(
      [&](const auto& held) {
        if constexpr (requires { *held; })
          updates.schedules.push_back({.config = config,
                                       .scheduler = runtime::prepare_scheduler(runtime::state_of(run_.runtime), held),
                                       .plateau = plateau});
        else throw UsageError("MU443", "configure_optimizers returned an LRSchedulerConfig without a scheduler");
      },
      config.scheduler.held());
  run_.preparation->schedulers.push_back(updates.schedules.back().scheduler);
}

StepOutput Optimization::train_on(const StepTable& steps, void* batch, BatchPlace place, bool last) {
  if (!run_.module().automatic_optimization) return training_step(steps, batch, place);
  if (run_.options.accumulate_grad_batches == 1) return optimize(steps, batch, place, /*ends_window=*/true, last);
  auto window = run_.runtime.accumulate(run_.preparation->model);
  if (last) window.end_window();
  return optimize(steps, batch, place, window.sync_gradients(), last);
}

StepOutput Optimization::training_step(const StepTable& steps, void* batch, BatchPlace place) {
  StepOutput output;
  run_.hooks.run(Hook::training_step, [&] {
    runtime::in_forward_scope(*run_.preparation->model.prepared(),
                              [&] { output = steps.step(run_.module(), batch, place); });
  });
  return output;
}

StepOutput Optimization::optimize(const StepTable& steps, void* batch, BatchPlace place, bool ends_window, bool last) {
  StepOutput output;
  const auto index = place.batch_idx;
  auto& handles = run_.preparation->handles;
  bool evaluated = false;
  const auto closure = [&]() -> at::Tensor {
    const at::AutoGradMode with_grad(true);
    if (std::exchange(evaluated, true) && run_.options.accumulate_grad_batches > 1)
      refuse_windows(handles.front().inner());
    output = training_step(steps, batch, place);
    if (window_.begins && !handles.empty()) {
      auto& optimizer = handles.front();
      run_.hooks.both(Hook::on_before_zero_grad, &Callback::on_before_zero_grad, &TrainerModule::on_before_zero_grad,
                      optimizer);
      run_.hooks.module(Hook::optimizer_zero_grad, &TrainerModule::optimizer_zero_grad, run_.progress.epoch, index,
                        optimizer);
    }
    if (output.loss.defined()) {
      window_.has_loss = true;
      backward(output.loss);
    }
    return output.loss;
  };
  for (const auto& updates : run_.preparation->updates) updates->made_update = false;
  if (ends_window && !handles.empty())
    run_.hooks.module(Hook::optimizer_step, &TrainerModule::optimizer_step, run_.progress.epoch, index, handles.front(),
                      ModuleOptimizer::Closure(closure));
  else closure();
  window_.begins = ends_window;
  if (ends_window) window_.has_loss = false;
  for (const auto& updates : run_.preparation->updates) updates->step_schedules(last);
  return output;
}

void Optimization::backward(const at::Tensor& loss) {
  run_.hooks.both(Hook::on_before_backward, &Callback::on_before_backward, &TrainerModule::on_before_backward, loss);
  run_.hooks.module(Hook::backward, &TrainerModule::backward, loss);
  run_.hooks.both(Hook::on_after_backward, &Callback::on_after_backward, &TrainerModule::on_after_backward);
}

void Optimization::manual_backward(const at::Tensor& loss) {
  if (run_.module().automatic_optimization)
    throw UsageError(
        "MU448",
        "manual_backward() was called in automatic optimization, where the Trainer calls backward with the "
        "loss that training_step() returns: return it, or set automatic_optimization = false in the "
        "constructor");
  backward(loss);
}

runtime::NoSyncScope Optimization::no_sync() {
  if (run_.module().automatic_optimization)
    throw UsageError("MU448",
                     "no_sync() was called in automatic optimization, where accumulate_grad_batches says which batches "
                     "communicate: set that, or automatic_optimization = false in the constructor");
  return run_.runtime.no_sync(run_.preparation->model);
}

/// Runs the closure and the hooks that may change gradients before an update. Returns false if no rank has gradients.
bool Optimization::make_gradients(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure,
                                  at::Tensor& loss) {
  const bool automatic = run_.module().automatic_optimization;
  loss = closure ? closure() : at::Tensor();
  // The flags of the reduction tell whether other ranks had a loss in the window.
  const auto some_rank_has_loss = [&] {
    return run_.runtime.world_size() == 1 ? window_.has_loss : any_rank_has_gradients(run_.runtime, updates.prepared);
  };
  if (automatic && !loss.defined() && !some_rank_has_loss()) return false;
  run_.runtime.unscale_gradients(updates.prepared);
  ModuleOptimizer handle(updates);
  run_.hooks.both(Hook::on_before_optimizer_step, &Callback::on_before_optimizer_step,
                  &TrainerModule::on_before_optimizer_step, handle);
  if (automatic) {
    const auto clip =
        run_.options.gradient_clip_val
            ? std::optional(GradientClipOptions{run_.options.gradient_clip_algorithm, *run_.options.gradient_clip_val})
            : std::nullopt;
    run_.hooks.module(Hook::configure_gradient_clipping, &TrainerModule::configure_gradient_clipping, handle, clip);
  }
  return true;
}

/// The optimizer's own step() decides when and how often the closure runs. Returns false if no rank has gradients.
bool Optimization::step_by_closure(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure,
                                   at::Tensor& loss) {
  const auto& model = run_.preparation->model;
  const bool automatic = run_.module().automatic_optimization;
  bool evaluated = false;
  const auto evaluate = [&] {
    at::Tensor own;
    evaluated = true;
    const auto make = [&] {
      if (!make_gradients(updates, closure, own)) throw NoGradients();
    };
    if (automatic) make();
    else runtime::in_forward_scope(*model.prepared(), make);  // training_step()'s forward scope is closed here
    return own;
  };
  try {
    outside_forward(model, [&] { loss = updates.prepared.step(evaluate); });
  } catch (const NoGradients&) {
    return false;
  }
  if (automatic && !evaluated) refuse_unused_closure(*updates.own);
  return true;
}

at::Tensor Optimization::step(ScheduledUpdates& updates, const ModuleOptimizer::Closure& closure) {
  const bool automatic = run_.module().automatic_optimization;
  if (automatic && !closure)
    throw UsageError("MU448",
                     "an optimizer was stepped without closure in automatic optimization, where the closure runs "
                     "training_step() and backward: call optimizer.step(closure) in optimizer_step()");
  at::Tensor loss;
  if (closure && evaluates_closure(updates.prepared)) {
    if (!step_by_closure(updates, closure, loss)) return {};
  } else {
    if (!make_gradients(updates, closure, loss)) return loss;
    updates.wait_for_step();  // the host waits for the previous step, while this backward is queued behind it
    outside_forward(run_.preparation->model, [&] { updates.prepared.step(); });
  }
  updates.note_step();
  return loss;
}

void Optimization::compare_schedules() {
  if (!run_.module().automatic_optimization || run_.options.fast_dev_run > 0 || run_.options.max_time.value()) return;
  for (const auto& updates : run_.preparation->updates)
    for (const auto& schedule : updates->schedules) {
      std::optional<int64_t> steps;
      if (schedule.config.interval == ScheduleInterval("step")) steps = loaders_.estimated_stepping_batches();
      else if (run_.options.max_steps < 0 && StopRule{run_.options}.has_last_epoch()) steps = run_.options.max_epochs;
      if (steps) expect_steps(schedule.scheduler, *steps / schedule.config.frequency);
    }
}

void Optimization::clip(const ModuleOptimizer& optimizer, const GradientClipOptions& how) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.updates_->own->param_groups())  // avoids reading a rate
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  if (how.algorithm == ClipAlgorithm("norm")) run_.runtime.clip_grad_norm_(parameters, how.value);
  else run_.runtime.clip_grad_value_(parameters, how.value);
}

void Optimization::step_plateau_schedules(ScheduleInterval interval) {
  if (!run_.module().automatic_optimization) return;
  for (const auto& updates : run_.preparation->updates) {
    // A batch whose update was skipped, for example by loss scaling, does not step these schedules either.
    const bool by_step = interval == ScheduleInterval("step");
    const auto watches = [&](const auto& one) { return one.plateau && one.config.interval == interval; };
    if (std::ranges::none_of(updates->schedules, watches)) continue;
    if (by_step && std::exchange(updates->plateau_steps, updates->made_steps()) == updates->steps) continue;
    for (const auto& schedule : updates->schedules) {
      if (!schedule.plateau || schedule.config.interval != interval) continue;
      const auto count = by_step ? updates->steps : run_.progress.epoch + 1;
      if (count % schedule.config.frequency != 0) continue;
      const auto& metrics = log_.latest.get();
      if (const auto value = value_on_main_rank(run_.runtime, metrics, schedule.config.monitor)) {
        run_.hooks.module(Hook::lr_scheduler_step, &TrainerModule::lr_scheduler_step, schedule.scheduler, value);
        continue;
      }
      const auto missing = not_logged("ReduceLROnPlateau", schedule.config.monitor, metrics);
      if (schedule.config.strict) throw UsageError("MU449", missing + "; log it, or set strict = false");
      log::warning(missing);
    }
  }
}

void Optimization::set_accumulate_grad_batches(int batches) {
  run_.runtime.set_gradient_accumulation_steps(batches);
  run_.options.accumulate_grad_batches = batches;
}

void Optimization::note_window_begin() {
  window_.begin = {};
  if (run_.options.accumulate_grad_batches == 1 || !run_.module().automatic_optimization) return;
  window_.begin = {
      .batches = run_.progress.batches, .total_batches = run_.progress.total_batches, .book = log_.training.snapshot()};
  for (const auto& loader : loaders_.of(StepKind::training).loaders)
    window_.begin.loaders.push_back(loader->save_position());
}

void Optimization::load_window_begin(const State* state) {
  window_.begin = {};
  if (state && !window_.begins) window_.begin.load_state_dict(*state, log_.latest);
}

void Optimization::go_back_to_window_begin() {
  const auto& loaders = loaders_.of(StepKind::training).loaders;
  for (std::size_t i = 0; i < loaders.size() && loaders.size() == window_.begin.loaders.size(); ++i)
    loaders[i]->load_position(window_.begin.loaders[i]);
  if (window_.begin.book)
    run_.progress.batches = window_.begin.batches, run_.progress.total_batches = window_.begin.total_batches;
  window_.begins = true;
  window_.has_loss = false;
  run_.progress.point = SavePoint::none;
}

}  // namespace muster::trainer
