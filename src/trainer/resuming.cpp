#include <algorithm>
#include <string>
#include <utility>

#include <c10/util/ScopeExit.h>

#include "core.h"
#include "muster/trainer/model_checkpoint.h"

namespace muster::trainer {

std::string Core::modes_text() const {
  std::string modes;
  inputs_.module->apply([&](const torch::nn::Module& one) { modes += one.is_training() ? 't' : 'e'; });
  return modes;
}

/// Sets the mode of every submodule, unless the modes belong to another module.
void Core::load_modes(const std::string& modes) {
  if (modes.size() != modes_text().size()) return;
  std::size_t i = 0;
  inputs_.module->apply([&](torch::nn::Module& one) { one.torch::nn::Module::train(modes[i++] == 't'); });
}

State Core::state_of_rank() {
  State state = State::Map{{"evaluation", evaluation_book_.state_dict()},
                           {"metrics", latest.state_dict()},
                           {"training", training_book_.state_dict()}};
  if (auto waiting = evaluation_book_.waiting_state(); !waiting.empty()) state.set("evaluation_row", waiting);
  if (auto waiting = training_book_.waiting_state(); !waiting.empty()) state.set("training_row", waiting);
  // After the last batch of an epoch no batch logs its metric objects again; a validation may be near its end, too.
  state.set("evaluation_objects", evaluation_book_.metrics().state_dict(runtime.group(), /*values=*/true));
  state.set("metric_objects", training_book_.metrics().state_dict(runtime.group(), progress.last_batch));
  if (!window_.begins && window_.begin.book) state.set("window", window_.begin.state_dict());
  return state;
}

/// The states of all ranks; a rank whose state equals rank 0's has an empty one.
State Core::states_of_ranks() {
  State::List all = runtime.gather_object(std::vector{state_of_rank()});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (identical(all[rank], all[0])) all[rank] = State();
  return all;
}

/// `restarts_window`: the open accumulation window is begun again.
void Core::load_states_of_ranks(const State::List& all, bool restarts_window) {
  const auto rank = static_cast<std::size_t>(runtime.rank()), world = static_cast<std::size_t>(runtime.world_size());
  const auto of = [&](std::size_t r) -> const State& { return all[r].empty() ? all[0] : all[r]; };
  const auto& own = of(rank < all.size() ? rank : 0);
  latest.load_state_dict(own.at("metrics"));
  training_book_.begin();
  evaluation_book_.begin();
  if (const auto* row = own.find("evaluation_row")) evaluation_book_.load_waiting_state(*row);
  if (const auto* row = own.find("training_row")) training_book_.load_waiting_state(*row);
  // On another number of ranks, rank 0 takes what all ranks had logged.
  const std::size_t first = all.size() == world ? rank : 0;
  const std::size_t end = all.size() == world ? rank + 1 : rank == 0 ? all.size() : 0;
  for (std::size_t r = first; r < end; ++r) {
    const auto* window = restarts_window ? of(r).find("window") : nullptr;
    const auto& from = window ? *window : of(r);
    training_book_.add_state_dict(from.at("training"), r == rank);
    if (const auto* objects = from.find("metric_objects")) training_book_.metrics().add_state_dict(*objects);
    if (restarts_window) continue;  // a validation in the window is begun again, too
    evaluation_book_.add_state_dict(of(r).at("evaluation"), r == rank);
    if (const auto* objects = of(r).find("evaluation_objects")) evaluation_book_.metrics().add_state_dict(*objects);
  }
  window_.begin = {};
  if (const auto* window = own.find("window"); window && !window_.begins)
    window_.begin.load_state_dict(*window, latest);
}

void Core::call_monitors(SavePoint point, Hook hook, c10::function_ref<void(Callback&)> call) {
  progress.point = point;
  const auto over = c10::make_scope_exit([&] { monitor_ = nullptr; });
  hooks.run(hook, [&] {
    for (const auto& callback : hooks.callbacks()) {
      if (!HookCalls::is_watcher(*callback)) continue;
      monitor_ = callback.get();
      call(*callback);
    }
  });
}

/// Calls the callbacks that watch or save and that had not been called when the resumed checkpoint was written.
void Core::continue_monitors() {
  const auto over = c10::make_scope_exit([&] { monitor_ = nullptr; });
  bool reached = resumed_saver_.empty();
  for (const auto& callback : hooks.callbacks()) {
    if (!HookCalls::is_watcher(*callback)) continue;
    auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get());
    monitor_ = callback.get();
    if (!reached) {
      reached = callback->state_key() == resumed_saver_;
      if (reached && saver) saver->finish_save(trainer);
    } else if (progress.point == SavePoint::batch_end) {
      if (saver) saver->after_batch(trainer);  // other callbacks would need the batch
    } else if (progress.point == SavePoint::validation_end) {
      hooks.run(Hook::on_validation_end, [&] { callback->on_validation_end(trainer, *inputs_.module); });
    } else if (progress.point == SavePoint::epoch_end) {
      hooks.run(Hook::on_train_epoch_end, [&] { callback->on_train_epoch_end(trainer, *inputs_.module); });
    }
  }
}

/// Called if training ends where it resumes: removes the checkpoints that asynchronous saves had replaced.
void Core::finish_savers() {
  for (const auto& callback : hooks.callbacks())
    if (auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get())) saver->finish_asynchronous_save(trainer);
}

/// Does what remained of the end of an epoch when the checkpoint was saved. Requires: load_progress().
void Core::resume_epoch_end() {
  if (progress.point != SavePoint::epoch_hooks && progress.point != SavePoint::epoch_end) return;
  --progress.epoch;
  progress.epoch_done = true;
  if (progress.point == SavePoint::epoch_hooks) finish_epoch();
  else continue_monitors();
  ++progress.epoch;
  progress.epoch_done = false;
  progress.point = SavePoint::none;
}

/// Does what remained after the batch at which the checkpoint was saved.
void Core::resume_batch_end(const std::optional<int64_t>& interval) {
  if (progress.point == SavePoint::batch_hooks) {
    log_training_step();
    progress.point = SavePoint::batch_end;
  }
  const auto point = progress.point;
  if (point == SavePoint::batch_end || point == SavePoint::validation_end) continue_monitors();
  if (point == SavePoint::batch_end || point == SavePoint::batch_done) return finish_batch(interval);
  if (point == SavePoint::in_validation) validate_in_fit();
  if (point == SavePoint::in_validation || point == SavePoint::validation_end) finish_validation();
  progress.point = SavePoint::none;
}

}  // namespace muster::trainer
