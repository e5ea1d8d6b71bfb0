#include "watchers.h"

#include <c10/util/ScopeExit.h>

#include "base/text.h"
#include "muster/trainer/callbacks.h"

namespace muster::trainer {

bool is_better(double a, double b, MonitorMode mode) noexcept { return mode == MonitorMode("min") ? a < b : a > b; }

double worst_value(MonitorMode mode) noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == MonitorMode("min") ? infinity : -infinity;
}

std::optional<double> value_on_main_rank(const Runtime& runtime, const Metrics& metrics, const std::string& name) {
  std::vector<double> own;
  if (const auto found = metrics.find(name); found != metrics.end()) own.push_back(found->second);
  if (runtime.world_size() > 1) own = runtime.broadcast_object(own);
  return own.empty() ? std::nullopt : std::optional(own.front());
}

std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics) {
  return std::string(watcher) + " watches \"" + monitor + "\", which was not logged" +
         known_ones(metrics, [](const auto& one) { return one.first; });
}

void Watchers::call(SavePoint point, Hook hook, c10::function_ref<void(Callback&)> call) {
  run_.progress.point = point;
  const auto over = c10::make_scope_exit([&] { current_ = nullptr; });
  run_.hooks.run(hook, [&] {
    for (const auto& callback : run_.hooks.callbacks()) {
      if (!HookCalls::is_watcher(*callback)) continue;
      current_ = callback.get();
      call(*callback);
    }
  });
}

std::string Watchers::current_key() const { return current_ ? current_->state_key() : std::string(); }

void Watchers::continue_call() {
  const auto over = c10::make_scope_exit([&] { current_ = nullptr; });
  const auto& progress = run_.progress;
  auto& hooks = run_.hooks;
  bool reached = resumed_saver_.empty();
  for (const auto& callback : hooks.callbacks()) {
    if (!HookCalls::is_watcher(*callback)) continue;
    auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get());
    current_ = callback.get();
    if (!reached) {
      reached = callback->state_key() == resumed_saver_;
      if (reached && saver) saver->finish_save(run_.trainer);
    } else if (progress.point == SavePoint::batch_end) {
      if (saver) saver->after_batch(run_.trainer);  // other callbacks would need the batch
    } else if (progress.point == SavePoint::validation_end) {
      hooks.run(Hook::on_validation_end, [&] { callback->on_validation_end(run_.trainer, run_.module()); });
    } else if (progress.point == SavePoint::epoch_end) {
      hooks.run(Hook::on_train_epoch_end, [&] { callback->on_train_epoch_end(run_.trainer, run_.module()); });
    }
  }
}

void Watchers::finish_savers() const {
  for (const auto& callback : run_.hooks.callbacks())
    if (auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get())) saver->finish_asynchronous_save(run_.trainer);
}

bool Watchers::time_is_up() const {
  return std::ranges::any_of(run_.hooks.callbacks(), [](const auto& callback) {
    const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get());
    return saver && saver->time_is_up();
  });
}

void Watchers::save_by_time() const {
  for (const auto& callback : run_.hooks.callbacks())
    if (auto* saver = dynamic_cast<ModelCheckpoint*>(callback.get())) saver->save_by_time(run_.trainer);
}

std::filesystem::path Watchers::best_model_path() const {
  std::filesystem::path best;
  for (const auto& callback : run_.hooks.callbacks())
    if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get()); saver && best.empty())
      best = saver->best_model_path();
  return best;
}

std::set<std::filesystem::path> Watchers::folders() const {
  std::set<std::filesystem::path> folders;
  for (const auto& callback : run_.hooks.callbacks())
    if (const auto* saver = dynamic_cast<const ModelCheckpoint*>(callback.get())) folders.insert(saver->folder_);
    else if (const auto* rescue = dynamic_cast<const OnExceptionCheckpoint*>(callback.get()))
      folders.insert(rescue->ckpt_path().parent_path());
  return folders;
}

}  // namespace muster::trainer
