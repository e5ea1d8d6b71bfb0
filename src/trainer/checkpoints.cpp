#include <algorithm>
#include <utility>

#include <c10/util/ScopeExit.h>

#include "base/log.h"
#include "core.h"
#include "lightning_file.h"
#include "muster/base/error.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

/// The position of training in the checkpoint; empty if another program wrote it.
State trainer_entry(const State& shared) {
  const auto* entry = shared.find(kTrainerEntry);
  return entry ? *entry : State();
}

/// Checks the key again: callbacks whose state was empty when the run began may turn out to have equal keys.
void add_callback(State& callbacks, const Callback& callback, State own) {
  if (callbacks.find(callback.state_key())) refuse_equal_keys(callback);
  callbacks.set(callback.state_key(), std::move(own));
}

}  // namespace

bool Core::inside_batch() const noexcept {
  return progress.point == SavePoint::in_batch || (failed_ && progress.point != SavePoint::none);
}

State Core::trainer_state() {
  stop.agree();
  trained_module->wait_for_steps();
  const auto& now = progress;
  State::List kinds, steps, plateau_steps;
  for (const auto kind : prepared_kinds_) kinds.emplace_back(static_cast<int64_t>(kind));
  for (const auto& trained : trained_module->optimizers) {
    steps.emplace_back(trained->steps);
    plateau_steps.emplace_back(trained->plateau_steps);
  }
  State state = State::Map{{"batches", now.epoch_done ? 0 : now.batches},
                           {"callbacks", State::Map{}},
                           {"epoch", now.epoch + (now.epoch_done ? 1 : 0)},
                           {"global_step", now.global_step},
                           {"interrupted", inside_batch()},
                           {"last_batch", now.last_batch},
                           {"loaders", std::move(kinds)},
                           {"logger", experiment.state_dict()},
                           {"modes", modes_.empty() ? modes_text() : modes_},
                           {"plateau_steps", std::move(plateau_steps)},
                           {"point", kSavePoints[static_cast<std::size_t>(now.point)]},
                           {"ranks", states_of_ranks()},
                           {"saver", monitor_ ? monitor_->state_key() : std::string()},
                           {"should_stop", stop.agreed()},
                           {"steps", std::move(steps)},
                           {"total_batches", now.total_batches},
                           {"validation", State::List{now.validation.dataloader_idx, now.validation.batch_idx}},
                           {"window_begins", window_.begins},
                           {"window_has_loss", window_.has_loss}};
  if (options.max_time) state.set("elapsed_ms", static_cast<int64_t>(clock_.elapsed(RunClock::now()).count()));
  if (const auto& options = inputs_.module->hyperparameters(); !options.empty()) state.set("hyper_parameters", options);
  for (const auto& callback : hooks.callbacks())
    if (auto own = callback->state_dict(); !own.empty()) add_callback(state.at("callbacks"), *callback, std::move(own));
  if (inputs_.data)
    if (auto own = inputs_.data->state_dict(); !own.empty()) state.set("data_module", std::move(own));
  hooks.callbacks(Hook::on_save_checkpoint, &Callback::on_save_checkpoint, state);
  hooks.module(Hook::on_save_checkpoint, &TrainerModule::on_save_checkpoint, state);
  return state;
}

void Core::save_checkpoint(const fs::path& folder, const SaveCheckpointOptions& how) {
  const auto& model = trained_module->required_model("save_checkpoint()");
  if (how.weights_only) return runtime.save_model(model, folder);
  auto hook = runtime.register_save_state_pre_hook(
      [entry = trainer_state()](State& state, const fs::path&) { state.set(kTrainerEntry, entry); });
  const auto remove = c10::make_scope_exit([&] { hook.remove(); });
  runtime.save_state(folder, {.asynchronous = how.asynchronous});
}

void Core::load_callbacks(State& state) {
  hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
  for (const auto& callback : hooks.callbacks())
    if (const auto* own = state.at("callbacks").find(callback->state_key())) callback->load_state_dict(*own);
}

/// Loads a checkpoint of an Accelerator or Fabric program, which has no position of a Trainer's loops.
void Core::load_foreign() {
  if (runtime.is_main())
    log::info(resumed_checkpoint_->folder().string(),
              " was not written by a Trainer: weights, optimizers and schedules are loaded, and epoch 0 begins");
  resumed_checkpoint_->load_models();
  set_up_optimizers();
  resumed_checkpoint_->load_optimizers();
  resumed_checkpoint_.reset();
}

/// Loads weights and counters of a checkpoint of Lightning in Python; an epoch that it has begun starts over.
void Core::load_lightning(const fs::path& file) {
  const auto saved = read_lightning_file(file);
  if (runtime.is_main())
    log::info(file.string(), " was written by Python: weights and counters are loaded, and optimizers begin anew");
  runtime.load_model(trained_module->model, file);
  progress = {.epoch = saved.epochs, .global_step = saved.global_step};
  set_up_optimizers();
}

void Core::load_for_fit(const fs::path& folder) {
  if (is_lightning_file(folder)) return load_lightning(folder);
  if (holds_weights_only(folder))
    throw UsageError("MU464",
                     folder.string() +
                         " holds weights only, so training cannot be resumed from it: name another checkpoint, "
                         "or load the weights by load_model() and start anew");
  resumed_checkpoint_.emplace(runtime, folder);
  State state = trainer_entry(resumed_checkpoint_->shared());
  if (state.empty()) return load_foreign();
  hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  resumed_checkpoint_->load_models();
  load_callbacks(state);
  if (inputs_.data)
    if (const auto* own = state.find("data_module")) inputs_.data->load_state_dict(*own);
  load_position(state);
  if (const auto* elapsed = state.find("elapsed_ms"))
    clock_.begin(RunClock::now(), std::chrono::milliseconds(elapsed->integer()));
  if (const auto* own = state.find("logger")) experiment.load_state_dict(*own);
  window_.begins = state.at("window_begins").boolean();
  window_.has_loss = state.at("window_has_loss").boolean();
  set_up_optimizers();
  resumed_checkpoint_->load_optimizers();
  const auto& steps = state.at("steps").list();
  const auto* plateau_steps = state.find("plateau_steps");
  auto& optimizers = trained_module->optimizers;
  for (std::size_t i = 0; i < std::min(steps.size(), optimizers.size()); ++i) {
    optimizers[i]->steps = steps[i].integer();
    if (plateau_steps) optimizers[i]->plateau_steps = plateau_steps->list().at(i).integer();
  }
}

void Core::load_position(const State& state) {
  const auto& validation = state.at("validation").list();
  const auto point = std::ranges::find(kSavePoints, state.at("point").text()) - kSavePoints.begin();
  progress = {.batches = state.at("batches").integer(),
              .epoch = state.at("epoch").integer(),
              .global_step = state.at("global_step").integer(),
              .last_batch = state.at("last_batch").boolean(),
              .point = static_cast<SavePoint>(static_cast<std::size_t>(point) % kSavePoints.size()),
              .total_batches = state.at("total_batches").integer(),
              .validation = {.batch_idx = validation.at(1).integer(), .dataloader_idx = validation.at(0).integer()}};
  stop.set(state.at("should_stop").boolean());
  resumed_saver_ = state.at("saver").text();
  resumed_ranks_ = state.at("ranks");
  resumed_loaders_ = state.at("loaders");
  if (progress.batches > 0) load_modes(state.at("modes").text());
  if (state.at("interrupted").boolean() && runtime.is_main())
    log::warning(resumed_checkpoint_->folder().string(),
                 " was written inside of a batch, which cannot be continued: training goes on with the next one; "
                 "ckpt_path = \"last\" chooses the newest that was written between batches");
}

/// Requires: the loaders of training are prepared. Those of validation may be prepared later: their position follows
/// from the progress.
void Core::load_progress() {
  resumed_checkpoint_->load_progress(/*fewer_loaders=*/true);
  const bool other_world = std::ssize(resumed_ranks_.list()) != runtime.world_size();
  const bool again = !window_.begins && (other_world || resumed_checkpoint_->shared().at("window").find("again"));
  load_states_of_ranks(resumed_ranks_.list(), again);
  if (again) go_back_to_window_begin();
  count_batches_done();
}

void Core::load_weights(const fs::path& folder) {
  if (is_lightning_file(folder) || holds_weights_only(folder)) {
    runtime.load_model(trained_module->model, folder);
    return;
  }
  OpenedCheckpoint checkpoint(runtime, folder);
  State state = trainer_entry(checkpoint.shared());
  if (state.empty()) return checkpoint.load_models();
  hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  checkpoint.load_models();
  hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
}

}  // namespace muster::trainer
