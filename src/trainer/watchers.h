#pragma once

#include <c10/util/FunctionRef.h>

#include "hooks.h"
#include "muster/runtime.h"
#include "muster/trainer/options.h"
#include "run.h"

/// What watches a logged metric: callbacks, and schedulers such as ReduceLROnPlateau.
/// Why: docs/decisions/0103-what-ranks-decide-together.md.
namespace muster::trainer {

/// Whether a is better than b. NaN is never better.
bool is_better(double a, double b, MonitorMode mode) noexcept;
/// The value that is worse than every other number.
double worst_value(MonitorMode mode) noexcept;
/// Rank 0's value of a metric, by which all ranks decide; nullopt if rank 0 has none. Collective.
std::optional<double> value_on_main_rank(const Runtime& runtime, const Metrics& metrics, const std::string& name);
/// The message that `watcher` monitors a name that is not among the metrics, with a list of these.
std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics);

/// The callbacks of a run that watch metrics or save. They run after the module's hook, one after the other, and a
/// checkpoint that one of them saves says which one, so that a resumed run calls those that remain. Owned by the Core.
/// Thread safety: one thread at a time.
class Watchers {
 public:
  explicit Watchers(Run& run) : run_(run) {}

  /// Calls each of them at this point of the run.
  void call(SavePoint point, Hook hook, c10::function_ref<void(Callback&)> call);
  /// The key of the one that is being called; empty if none is.
  std::string current_key() const;
  /// `saver`: key of the one that wrote the checkpoint that is resumed; empty if none did.
  void resume(std::string saver) { resumed_saver_ = std::move(saver); }
  /// Calls those that had not been called when the resumed checkpoint was written.
  void continue_call();
  /// Removes the checkpoints that asynchronous saves had replaced. Called if training ends where it resumes.
  void finish_savers() const;

  /// Whether a checkpoint is due by time on this rank.
  bool time_is_up() const;
  /// Saves the checkpoints that are due by time. Collective.
  void save_by_time() const;
  /// The best checkpoint of the first ModelCheckpoint that has one; empty if none has.
  std::filesystem::path best_model_path() const;
  /// The folders that callbacks save in.
  std::set<std::filesystem::path> folders() const;

 private:
  Run& run_;
  const Callback* current_ = nullptr;  // callback that is being called
  std::string resumed_saver_;          // key of the callback that wrote the resumed checkpoint
};

}  // namespace muster::trainer
