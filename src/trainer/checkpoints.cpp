#include <algorithm>
#include <system_error>
#include <utility>

#include <c10/util/ScopeExit.h>

#include "core.h"
#include "muster/base/detail/log.h"
#include "muster/base/error.h"
#include "muster/trainer/detail/model_checkpoint.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEntry = "trainer";

/// The checkpoint in a folder that was written last; empty if there is none.
fs::path newest_in(const fs::path& folder) {
  fs::path newest;
  fs::file_time_type time{};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".ckpt") continue;
    const auto written = fs::last_write_time(entry.path(), ignored);
    if (newest.empty() || written > time) newest = entry.path(), time = written;
  }
  return newest;
}

const State& trainer_entry(const State& shared, const fs::path& folder) {
  if (const auto* entry = shared.find(kEntry)) return *entry;
  throw CheckpointError("MU450", folder.string() +
                                     " was not saved by a Trainer, so it does not say where training stood; "
                                     "load its weights by load_model() instead, and start anew");
}

}  // namespace

State Core::trainer_state() {
  State::List steps;
  for (const auto& trained : optimizers) steps.emplace_back(trained->steps);
  const int64_t batches = progress.epoch_done ? 0 : progress.batches;
  State state = State::Map{{"batches", batches},
                           {"callbacks", State::Map{}},
                           {"epoch", progress.epoch + (progress.epoch_done ? 1 : 0)},
                           {"global_step", progress.global_step},
                           {"logger", experiment.state_dict()},
                           {"steps", std::move(steps)},
                           {"total_batches", progress.total_batches},
                           {"window_begins", window_begins_},
                           {"window_has_loss", window_has_loss_}};
  if (options.max_time) state.set("elapsed_ms", static_cast<int64_t>(clock_.elapsed(RunClock::now()).count()));
  for (const auto& callback : hooks.callbacks())
    if (auto own = callback->state_dict(); !own.empty())
      state.at("callbacks").set(callback->state_key(), std::move(own));
  if (task_.data)
    if (auto own = task_.data->state_dict(); !own.empty()) state.set("data_module", std::move(own));
  hooks.callbacks(Hook::on_save_checkpoint, &Callback::on_save_checkpoint, state);
  hooks.module(Hook::on_save_checkpoint, &TrainerModule::on_save_checkpoint, state);
  return state;
}

void Core::save_checkpoint(const fs::path& folder) {
  if (!task_.module)
    throw UsageError("MU446", "save_checkpoint() was called before the first run; there is nothing to save");
  auto hook = runtime.register_save_state_pre_hook(
      [entry = trainer_state()](State& state, const fs::path&) { state.set(kEntry, entry); });
  const auto remove = c10::make_scope_exit([&] { hook.remove(); });
  runtime.save_state(folder);
}

/// The folder that ckpt_path names, the same on every rank; empty: none is named, or, unless `required`, none is there.
fs::path Core::resolved(const std::string& ckpt_path, bool required) const {
  if (ckpt_path != "best" && ckpt_path != "last") return ckpt_path;
  fs::path found;
  for (const auto& callback : hooks.callbacks().empty() ? options.callbacks : hooks.callbacks())
    if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get()); saver && found.empty())
      found = ckpt_path == "best" ? saver->best_model_path() : saver->last_model_path();
  if (found.empty() && ckpt_path == "last") found = newest_in(options.default_root_dir / "checkpoints");
  found = runtime.broadcast_object(found.string());
  if (!found.empty()) return found;
  if (required || ckpt_path == "best")
    throw UsageError("MU450", "ckpt_path is \"" + ckpt_path +
                                  "\", and no ModelCheckpoint of this Trainer has saved one; "
                                  "name the folder of a checkpoint");
  if (runtime.is_main()) log::warning("ckpt_path is \"last\", and there is no checkpoint: training starts anew");
  return {};
}

void Core::load_callbacks(State& state) {
  hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
  for (const auto& callback : hooks.callbacks())
    if (const auto* own = state.at("callbacks").find(callback->state_key())) callback->load_state_dict(*own);
}

void Core::load_for_fit(const fs::path& folder) {
  opened_.emplace(runtime, folder);
  State state = trainer_entry(opened_->shared(), opened_->folder());
  hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  opened_->load_models();
  load_callbacks(state);
  if (task_.data)
    if (const auto* own = state.find("data_module")) task_.data->load_state_dict(*own);
  progress = {.batches = state.at("batches").integer(),
              .epoch = state.at("epoch").integer(),
              .epoch_done = false,
              .global_step = state.at("global_step").integer(),
              .total_batches = state.at("total_batches").integer()};
  if (const auto* elapsed = state.find("elapsed_ms"))
    clock_.begin(RunClock::now(), std::chrono::milliseconds(elapsed->integer()));
  if (const auto* own = state.find("logger")) experiment.load_state_dict(*own);
  window_begins_ = state.at("window_begins").boolean();
  window_has_loss_ = state.at("window_has_loss").boolean();
  set_up_optimizers();
  opened_->load_optimizers();
  const auto& steps = state.at("steps").list();
  for (std::size_t i = 0; i < std::min(steps.size(), optimizers.size()); ++i) optimizers[i]->steps = steps[i].integer();
}

/// Requires: loaders are prepared in the order in which they were when the checkpoint was saved.
void Core::load_progress() {
  opened_->load_progress();
  const auto& loaders = feed(StepKind::training).loaders;
  if (progress.batches > 0 && loaders.size() == 1) progress.batches = loaders.front()->num_yielded();
}

void Core::load_weights(const fs::path& folder) {
  OpenedCheckpoint checkpoint(runtime, folder);
  State state = trainer_entry(checkpoint.shared(), checkpoint.folder());
  hooks.module(Hook::on_load_checkpoint, &TrainerModule::on_load_checkpoint, state);
  checkpoint.load_models();
  hooks.callbacks(Hook::on_load_checkpoint, &Callback::on_load_checkpoint, state);
}

}  // namespace muster::trainer
