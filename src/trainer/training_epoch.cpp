#include <optional>
#include <utility>

#include "core.h"
#include "muster/base/error.h"
#include "muster/trainer/callback.h"

namespace muster::trainer {
namespace {

/// Throws if epochs without batches would repeat forever.
void require_an_end(const TrainerOptions& options) {
  if (StopRule(options).max_epochs) return;
  throw UsageError("MU437",
                   "the loader for training gave no batch in a whole epoch, and without max_epochs nothing would end "
                   "training: give the loader data, or set max_epochs");
}

}  // namespace

/// Remakes the training loaders if this epoch needs it; the validation loaders are remade when validation begins.
void Core::reload_dataloaders() {
  const auto every = options.reload_dataloaders_every_n_epochs;
  if (every == 0 || progress.epoch % every != 0 || progress.epoch == first_epoch_) return;
  forget_data(StepKind::training);
  setup_data(StepKind::training);
}

void Core::training_epoch() {
  const bool resumed = progress.batches > 0;
  if (!resumed) {
    reload_dataloaders();
    hooks.both(Hook::on_train_epoch_start, &Callback::on_train_epoch_start, &TrainerModule::on_train_epoch_start);
    stop.agree();
  }
  auto& prepared = setup_data(StepKind::training);
  const auto limit = batches_of(options.limit_train_batches, batches_in(prepared), "limit_train_batches");
  const auto interval = validation_interval(options.val_check_interval, limit, !options.check_val_every_n_epoch);
  if (!resumed) {
    for (const auto& one : prepared.loaders) {
      one->set_epoch(progress.epoch);
      one->seek(0);  // a loaded position may be the end of the last epoch
    }
  }
  if (resumed) resume_batch_end(interval);
  {
    TrainingPass pass(prepared, progress.epoch, progress.batches);
    while (!(limit && progress.batches >= *limit) && !steps_done() && !(stop.agreed() && may_stop())) {
      if (window_.begins) note_window();
      void* batch = pass.next();
      if (!batch) {
        if (progress.batches == 0) require_an_end(options);
        break;
      }
      const bool last = pass.at_end() || (limit && progress.batches + 1 == *limit);
      place_ = {.batch_idx = progress.batches, .dataloader_idx = pass.loader()};
      if (!training_batch(pass.steps(), batch, last)) break;
      finish_batch(interval);
    }
  }
  end_epoch();
}

bool Core::training_batch(const StepTable& steps, void* batch, bool last) {
  auto& module = *inputs_.module;
  progress.point = SavePoint::in_batch;
  transfer(steps, batch, place_.dataloader_idx);
  const BatchView view(batch, steps.type);
  context_ = {.batch_size = view.size(), .loader = -1, .step = context_.step + 1};
  hooks.callbacks(Hook::on_train_batch_start, &Callback::on_train_batch_start, view, place_);
  if (steps.start &&
      hooks.run(Hook::on_train_batch_start, [&] { return steps.start(module, batch, place_); }) == EpochFlow::skip_rest)
    return progress.point = SavePoint::none, false;
  StepOutput output;
  if (module.automatic_optimization) optimize(steps, batch, last, output);
  else output = training_step(steps, batch);
  if (output.loss.defined()) {
    output.loss = output.loss.detach();
    if (module.automatic_optimization && options.accumulate_grad_batches > 1)
      output.loss = output.loss / options.accumulate_grad_batches;
  }
  ++progress.batches;  // before the callbacks that save
  ++progress.total_batches;
  progress.last_batch = last;
  progress.point = SavePoint::batch_hooks;
  hooks.some_callbacks(Hook::on_train_batch_end, HookCalls::is_no_watcher, &Callback::on_train_batch_end, output, view,
                       place_);
  if (steps.end) hooks.run(Hook::on_train_batch_end, [&] { steps.end(module, output, batch, place_); });
  log_training_step();
  call_monitors(SavePoint::batch_end, Hook::on_train_batch_end,
                [&](Callback& callback) { callback.on_train_batch_end(trainer, module, output, view, place_); });
  return true;
}

/// Does what follows a batch and precedes the next one.
void Core::finish_batch(const std::optional<int64_t>& interval) {
  progress.point = SavePoint::batch_done;
  if (window_.begins) handle_votes();
  read_clock();
  if (validation_due(progress.last_batch, interval)) validate_in_fit();
  finish_validation();
}

void Core::finish_validation() {
  if (window_.begins) {
    step_plateau_schedules("step");
    experiment.count_step();
  }
  progress.point = SavePoint::none;
}

void Core::end_epoch() {
  trained_module->wait_for_steps();
  context_ = {.step = context_.step + 1};
  training_book_.close(runtime.group());
  progress.epoch_done = true;
  progress.point = SavePoint::epoch_hooks;
  hooks.some_callbacks(Hook::on_train_epoch_end, HookCalls::is_no_watcher, &Callback::on_train_epoch_end);
  hooks.module(Hook::on_train_epoch_end, &TrainerModule::on_train_epoch_end);
  finish_epoch();
  stop.agree();
  ++progress.epoch;
  progress.batches = 0;
  progress.epoch_done = progress.last_batch = false;
  progress.point = SavePoint::none;
}

/// Does what follows the hooks at the end of an epoch.
void Core::finish_epoch() {
  training_book_.close(runtime.group());
  log_epoch(training_book_, experiment.last_step());
  step_plateau_schedules("epoch");  // before a checkpoint is saved, so that it holds the rates of the next epoch
  call_monitors(SavePoint::epoch_end, Hook::on_train_epoch_end,
                [&](Callback& callback) { callback.on_train_epoch_end(trainer, *inputs_.module); });
}

}  // namespace muster::trainer
