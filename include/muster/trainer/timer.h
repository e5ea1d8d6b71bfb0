#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Options of Timer, with Lightning's names and defaults.
struct TimerOptions {
  std::optional<std::chrono::milliseconds> duration = {};  ///< limit of training, with validation; unset: no limit
  ScheduleInterval interval = "step";                      ///< when it checks: after each batch or each epoch
  bool verbose = true;                                     ///< logs a message when it ends training
};

/// Measures the time of training, validation and tests, and ends training when its duration has passed, once min_epochs
/// and min_steps are reached. Time spent before a resumed checkpoint counts. Rank 0's clock decides.
/// Collective: the hooks, with a duration and several ranks.
class Timer : public Callback {
 public:
  using Duration = std::chrono::steady_clock::duration;
  /// Throws: ConfigError (MU451) for a negative duration.
  explicit Timer(TimerOptions options = {});

  /// The time of training (Stage::fit), of the last validation or of the last test, up to its end or up to now.
  Duration time_elapsed(Stage stage = Stage::fit) const;
  /// The time until training ends; unset without a duration. Negative once it has passed.
  std::optional<Duration> time_remaining() const;
  /// When the stage last began and ended, if it did.
  std::optional<std::chrono::steady_clock::time_point> start_time(Stage stage = Stage::fit) const;
  std::optional<std::chrono::steady_clock::time_point> end_time(Stage stage = Stage::fit) const;

  State state_dict() const override;
  void load_state_dict(const State& state) override;
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_end(Trainer& trainer, TrainerModule& module) override;
  void on_exception(Trainer& trainer, TrainerModule& module, const std::exception_ptr& error) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_start(Trainer& trainer, TrainerModule& module) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;
  void on_test_start(Trainer& trainer, TrainerModule& module) override;
  void on_test_end(Trainer& trainer, TrainerModule& module) override;

 private:
  struct Span {
    std::optional<std::chrono::steady_clock::time_point> begin = {}, end = {};
  };
  void start(Stage stage);
  void finish(Stage stage);
  void check(Trainer& trainer) const;

  TimerOptions options_;
  std::array<Span, 4> spans_ = {};  // by stage
  Duration before_ = {};            // time of training before the resumed checkpoint
};

}  // namespace muster
