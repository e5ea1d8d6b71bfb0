#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

namespace trainer {
class Watchers;
}

/// Options of ModelCheckpoint, with Lightning's names and defaults.
struct ModelCheckpointOptions {
  bool asynchronous = false;                        ///< training continues while files are written
  bool auto_insert_metric_name = true;              ///< "{epoch}" becomes "epoch=3" instead of "3"
  std::filesystem::path dirpath = {};               ///< empty: "checkpoints" in the Trainer's default_root_dir
  bool enable_version_counter = true;               ///< a name in use gets "-v1"; off: the checkpoint is replaced
  std::optional<int64_t> every_n_epochs = {};       ///< unset: 1, unless steps or a time interval are set
  std::optional<int64_t> every_n_train_steps = {};  ///< updates of all optimizers
  std::string filename = {};  ///< empty: "{epoch}-{step}"; fields may be any metric, as "{loss:.2f}"
  MonitorMode mode = "min";
  std::string monitor = {};  ///< the metric that ranks checkpoints; empty: the newest is best
  /// Write "last.ckpt" ("last-v1.ckpt" if another run has one) with each checkpoint that is kept, or each time if steps
  /// or a time interval are set; and at the end of training, if nothing was written before.
  bool save_last = false;
  /// Also save if an exception ends fit(); "last.ckpt" does not change. "last" does not choose a checkpoint that was
  /// written inside a batch.
  bool save_on_exception = false;
  std::optional<bool> save_on_train_epoch_end = {};  ///< unset: if validation runs at the end of epochs only
  int64_t save_top_k = 1;                            ///< how many are kept; -1: all; 0: only "last.ckpt"
  bool save_weights_only = false;                    ///< model.safetensors alone, which training cannot resume from
  /// Save when this time has passed since the last save, by the clock of the main rank.
  std::optional<std::chrono::microseconds> train_time_interval = {};
};

/// Saves checkpoints during fit() and keeps the best. Each is a folder with everything that resuming needs. It never
/// saves twice at one global_step, and never in the sanity check.
class ModelCheckpoint : public Callback {
 public:
  /// Throws: ConfigError (MU451), listing everything that is wrong with the options.
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});
  Place place() const override { return Place::last; }
  std::string state_key() const override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_train_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_end(Trainer& trainer, TrainerModule& module) override;
  void on_exception(Trainer& trainer, TrainerModule& module, const std::exception_ptr& error) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;

  const std::filesystem::path& best_model_path() const noexcept { return best_path_; }
  const std::optional<double>& best_model_score() const noexcept { return best_score_; }
  /// The path of "last.ckpt", or else of the newest checkpoint; empty if nothing was saved.
  const std::filesystem::path& last_model_path() const noexcept { return last_path_; }
  /// The checkpoints kept, with their scores.
  const std::map<std::filesystem::path, double>& best_k_models() const noexcept { return kept_; }
  /// The name, without folder, of a checkpoint with these metrics.
  std::string format_checkpoint_name(const Metrics& metrics) const;

 private:
  friend class trainer::Watchers;
  using Clock = std::chrono::steady_clock;

  /// When "last.ckpt" is written.
  enum class LastRule : std::uint8_t { always, with_another };

  bool waits_for_metric(const Trainer& trainer) const;
  void after_batch(Trainer& trainer);
  void save_now_or_when_due(Trainer& trainer);
  bool time_is_up() const;
  void save_by_time(Trainer& trainer);
  /// Completes what an interruption may have left of save().
  void finish_save(Trainer& trainer);
  SaveCheckpointOptions how() const;
  static Metrics metrics_of(const Trainer& trainer);
  bool saves_at_train_epoch_end(const Trainer& trainer) const;
  void save_after_epoch(Trainer& trainer);
  static bool saves_in(const Trainer& trainer);
  std::optional<double> score_to_keep(const Trainer& trainer, const Metrics& metrics);
  void save(Trainer& trainer, LastRule last);
  void name_last(const Trainer& trainer);
  void save_as(Trainer& trainer, const Metrics& metrics, double score);
  std::filesystem::path free_name(const Trainer& trainer, const std::string& name,
                                  const std::optional<std::filesystem::path>& going) const;
  void finish_asynchronous_save(Trainer& trainer);
  void remove_replaced(const Trainer& trainer);
  std::map<std::filesystem::path, double>::iterator worst();

  ModelCheckpointOptions options_;
  std::filesystem::path folder_;
  std::map<std::filesystem::path, double> kept_;
  std::filesystem::path best_path_, last_path_;
  std::optional<double> best_score_;
  int64_t last_step_ = 0;           // global_step of the last save
  bool due_ = false;                // a save waits for the metric of the next validation
  bool validated_ = false;          // whether this fit() has validated
  bool last_due_ = false;           // "last.ckpt" is still to be written
  std::filesystem::path replaced_;  // removed once the next one is complete
  Clock::time_point saved_at_;
};

}  // namespace muster
