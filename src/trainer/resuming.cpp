#include <algorithm>
#include <string>
#include <utility>

#include "core.h"
#include "muster/trainer/detail/model_checkpoint.h"

namespace muster::trainer {

std::string Core::modes_text() const {
  std::string modes;
  task_.module->apply([&](const torch::nn::Module& one) { modes += one.is_training() ? 't' : 'e'; });
  return modes;
}

/// The mode of every submodule; that of another module is left alone.
void Core::load_modes(const std::string& modes) {
  if (modes.size() != modes_text().size()) return;
  std::size_t i = 0;
  task_.module->apply([&](torch::nn::Module& one) { one.torch::nn::Module::train(modes[i++] == 't'); });
}

State Core::state_of_rank() {
  State state = State::Map{{"evaluation", evaluation_book_.state_dict()},
                           {"metrics", latest.state_dict()},
                           {"training", training_book_.state_dict()}};
  // After the last batch of an epoch, no other one logs its metric objects; a validation may be near its end, too.
  state.set("evaluation_objects", evaluation_book_.metrics().state_dict(runtime.group(), /*values=*/true));
  state.set("metric_objects", training_book_.metrics().state_dict(runtime.group(), progress.last_batch));
  if (!window_begins_ && window_.book) state.set("window", window_.state_dict());
  return state;
}

/// Those of all ranks; a rank whose state is that of rank 0 has none of its own.
State Core::states_of_ranks() {
  State::List all = runtime.gather_object(std::vector{state_of_rank()});
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (identical(all[rank], all[0])) all[rank] = State();
  return all;
}

/// `again`: the open window begins again.
void Core::load_states_of_ranks(const State::List& all, bool again) {
  const auto rank = static_cast<std::size_t>(runtime.rank()), world = static_cast<std::size_t>(runtime.world_size());
  const auto of = [&](std::size_t r) -> const State& { return all[r].empty() ? all[0] : all[r]; };
  const auto& own = of(rank < all.size() ? rank : 0);
  latest.load_state_dict(own.at("metrics"));
  training_book_.begin();
  evaluation_book_.begin();
  // On another number of ranks the first one takes up what all had logged.
  const std::size_t first = all.size() == world ? rank : 0;
  const std::size_t end = all.size() == world ? rank + 1 : rank == 0 ? all.size() : 0;
  for (std::size_t r = first; r < end; ++r) {
    const auto* window = again ? of(r).find("window") : nullptr;
    const auto& from = window ? *window : of(r);
    training_book_.add_state_dict(from.at("training"), r == rank);
    if (const auto* objects = from.find("metric_objects")) training_book_.metrics().add_state_dict(*objects);
    if (again) continue;  // so does a validation in it
    evaluation_book_.add_state_dict(of(r).at("evaluation"), r == rank);
    if (const auto* objects = of(r).find("evaluation_objects")) evaluation_book_.metrics().add_state_dict(*objects);
  }
  window_ = {};
  if (const auto* window = own.find("window"); window && !window_begins_) window_.load_state_dict(*window, latest);
}

void Core::call_watchers(SavePoint point, Hook hook, c10::function_ref<void(Callback&)> call) {
  progress.point = point;
  hooks.run(hook, [&] {
    for (const auto& callback : hooks.callbacks()) {
      if (!HookCalls::is_watcher(*callback)) continue;
      watcher_ = callback.get();
      call(*callback);
    }
  });
  watcher_ = nullptr;
}

/// Lets the callbacks save that had not when the checkpoint was written that training is resumed from.
void Core::continue_savers() {
  bool reached = resumed_saver_.empty();
  for (const auto& callback : hooks.callbacks()) {
    auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get());
    if (!saver) continue;
    watcher_ = saver;
    if (!reached) {
      reached = saver->state_key() == resumed_saver_;
      if (reached) saver->finish_save(trainer);
    } else if (progress.point == SavePoint::batch_end) {
      saver->after_batch(trainer);
    } else if (progress.point == SavePoint::validation_end) {
      hooks.run(Hook::on_validation_end, [&] { saver->on_validation_end(trainer, *task_.module); });
    } else if (progress.point == SavePoint::epoch_end) {
      hooks.run(Hook::on_train_epoch_end, [&] { saver->on_train_epoch_end(trainer, *task_.module); });
    }
  }
  watcher_ = nullptr;
}

/// Training ends where it is resumed: asynchronous saves had left what they replaced.
void Core::finish_savers() {
  for (const auto& callback : hooks.callbacks())
    if (auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get())) saver->on_train_end(trainer, *task_.module);
}

/// What the checkpoint left of the end of an epoch. Requires: load_progress().
void Core::resume_epoch_end() {
  if (progress.point != SavePoint::epoch_end) return;
  --progress.epoch;
  progress.epoch_done = true;
  continue_savers();
  ++progress.epoch;
  progress.epoch_done = false;
  progress.point = SavePoint::none;
}

/// What the checkpoint left of the batch that it was saved after.
void Core::resume_batch_end(const std::optional<int64_t>& interval) {
  const auto point = progress.point;
  if (point == SavePoint::batch_end || point == SavePoint::validation_end) continue_savers();
  if (point == SavePoint::batch_end || point == SavePoint::batch_done) return finish_batch(interval);
  if (point == SavePoint::in_validation) validate_in_fit();
  if (point == SavePoint::in_validation || point == SavePoint::validation_end) finish_validation();
  progress.point = SavePoint::none;
}

}  // namespace muster::trainer
