#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/word.h"
#include "muster/track/progress.h"
#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

namespace trainer {
class Watchers;
struct LoggingIntervalWords {
  static constexpr std::string_view kAll[] = {"schedule", "step", "epoch"};
};
struct WriteIntervalWords {
  static constexpr std::string_view kAll[] = {"batch", "epoch", "batch_and_epoch"};
};
}  // namespace trainer

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
  void on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) override {
    after_batch(trainer);
  }
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
  SaveCheckpointOptions how() const { return {options_.asynchronous, options_.save_weights_only}; }
  static Metrics metrics_of(const Trainer& trainer);
  bool saves_at_train_epoch_end(const Trainer& trainer) const;
  void save_after_epoch(Trainer& trainer);
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

/// Options of EarlyStopping, with Lightning's names and defaults.
struct EarlyStoppingOptions {
  bool check_finite = true;                           ///< stop if the metric is infinite or NaN
  std::optional<bool> check_on_train_epoch_end = {};  ///< unset: if validation runs at the end of epochs only
  std::optional<double> divergence_threshold = {};    ///< stop if the metric is worse than this
  double min_delta = 0.0;                             ///< an improvement is greater than this
  MonitorMode mode = "min";
  std::string monitor = {};
  int64_t patience = 3;                           ///< checks without improvement until training stops
  std::optional<double> stopping_threshold = {};  ///< stop if the metric is better than this
  bool strict = true;                             ///< a missing metric is an error
};

/// Ends training when a metric stops improving. If any rank decides to stop, all ranks stop; a rank that has not logged
/// the metric has no vote. Collective.
class EarlyStopping : public Callback {
 public:
  /// Throws: ConfigError (MU451), listing everything that is wrong with the options.
  explicit EarlyStopping(EarlyStoppingOptions options);
  Place place() const override { return Place::last; }
  std::string state_key() const override;
  State state_dict() const override;
  void load_state_dict(const State& state) override;
  /// Throws: UsageError (MU449), listing the logged metrics, if no rank has logged this one.
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;

  /// The best value seen.
  double best_score() const noexcept { return best_; }
  /// The epoch in which training was stopped; 0 if it was not.
  int64_t stopped_epoch() const noexcept { return stopped_epoch_; }
  /// Checks since the last improvement.
  int64_t wait_count() const noexcept { return wait_count_; }
  /// Why training was stopped; empty if it was not.
  const std::string& stopping_reason() const noexcept { return reason_; }

 private:
  bool checks_at_train_epoch_end(const Trainer& trainer) const;
  void check(Trainer& trainer);
  /// Checks a value of the metric; returns the reason to stop, or an empty string.
  std::string judge(double value);

  EarlyStoppingOptions options_;
  double best_;
  std::string reason_;
  int64_t stopped_epoch_ = 0;
  int64_t wait_count_ = 0;
};

/// Changes accumulate_grad_batches at the start of epochs: with {{4, 2}, {8, 4}} epochs 0 to 3 do not accumulate,
/// epochs 4 to 7 accumulate 2 batches, and later epochs 4. Afterwards the Trainer's setting is restored.
class GradientAccumulationScheduler : public Callback {
 public:
  /// `scheduling`: maps an epoch, counted from 0, to the number of batches in a window from that epoch on.
  /// Throws: ConfigError (MU451) for an empty map, an epoch below 0 or fewer than 1 batch.
  explicit GradientAccumulationScheduler(std::map<int64_t, int> scheduling);

  /// The number of batches in a window of this epoch.
  int accumulate_grad_batches(int64_t epoch) const;

  /// Throws: UsageError (MU435) if accumulate_grad_batches of the Trainer is not 1, or in manual optimization.
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void teardown(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_epoch_start(Trainer& trainer, TrainerModule& module) override;

 private:
  std::map<int64_t, int> scheduling_;
  bool active_ = false;  // between setup() and teardown() of a fit()
};

/// Functions to call in hooks, with the parameters of the hook of that name in Callback. Empty functions are not
/// called.
struct LambdaHooks {
  using Hook = std::function<void(Trainer&, TrainerModule&)>;
  using BatchStart = std::function<void(Trainer&, TrainerModule&, const BatchView&, BatchPlace)>;
  using BatchEnd = std::function<void(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace)>;
  using OfStage = std::function<void(Trainer&, TrainerModule&, Stage)>;
  using OfOptimizer = std::function<void(Trainer&, TrainerModule&, ModuleOptimizer&)>;
  using OfLoss = std::function<void(Trainer&, TrainerModule&, const at::Tensor&)>;
  using OfError = std::function<void(Trainer&, TrainerModule&, const std::exception_ptr&)>;
  using OfState = std::function<void(Trainer&, TrainerModule&, State&)>;

  Hook on_after_backward = {};
  OfLoss on_before_backward = {};
  OfOptimizer on_before_optimizer_step = {};
  OfOptimizer on_before_zero_grad = {};
  OfError on_exception = {};
  Hook on_fit_end = {};
  Hook on_fit_start = {};
  OfState on_load_checkpoint = {};
  BatchEnd on_predict_batch_end = {};
  BatchStart on_predict_batch_start = {};
  Hook on_predict_end = {};
  Hook on_predict_epoch_end = {};
  Hook on_predict_epoch_start = {};
  Hook on_predict_start = {};
  Hook on_sanity_check_end = {};
  Hook on_sanity_check_start = {};
  OfState on_save_checkpoint = {};
  BatchEnd on_test_batch_end = {};
  BatchStart on_test_batch_start = {};
  Hook on_test_end = {};
  Hook on_test_epoch_end = {};
  Hook on_test_epoch_start = {};
  Hook on_test_start = {};
  BatchEnd on_train_batch_end = {};
  BatchStart on_train_batch_start = {};
  Hook on_train_end = {};
  Hook on_train_epoch_end = {};
  Hook on_train_epoch_start = {};
  Hook on_train_start = {};
  BatchEnd on_validation_batch_end = {};
  BatchStart on_validation_batch_start = {};
  Hook on_validation_end = {};
  Hook on_validation_epoch_end = {};
  Hook on_validation_epoch_start = {};
  Hook on_validation_start = {};
  OfStage setup = {};
  OfStage teardown = {};
};

/// A callback made of functions: LambdaCallback({.on_train_epoch_end = [](Trainer& trainer, TrainerModule&) { ... }}).
/// It has no state. Thread safety: as Callback.
class LambdaCallback : public Callback {
 public:
  explicit LambdaCallback(LambdaHooks hooks) : hooks_(std::move(hooks)) {}

  void setup(Trainer& t, TrainerModule& m, Stage stage) override;
  void teardown(Trainer& t, TrainerModule& m, Stage stage) override { call(hooks_.teardown, t, m, stage); }
  void on_fit_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_fit_start, t, m); }
  void on_fit_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_fit_end, t, m); }
  void on_sanity_check_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_sanity_check_start, t, m); }
  void on_sanity_check_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_sanity_check_end, t, m); }
  void on_train_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_train_start, t, m); }
  void on_train_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_train_end, t, m); }
  void on_train_epoch_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_train_epoch_start, t, m); }
  void on_train_epoch_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_train_epoch_end, t, m); }
  void on_train_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override {
    call(hooks_.on_train_batch_start, t, m, batch, place);
  }
  void on_train_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override {
    call(hooks_.on_train_batch_end, t, m, output, batch, place);
  }
  void on_validation_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_validation_start, t, m); }
  void on_validation_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_validation_end, t, m); }
  void on_validation_epoch_start(Trainer& t, TrainerModule& m) override {
    call(hooks_.on_validation_epoch_start, t, m);
  }
  void on_validation_epoch_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_validation_epoch_end, t, m); }
  void on_validation_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override {
    call(hooks_.on_validation_batch_start, t, m, batch, place);
  }
  void on_validation_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                               BatchPlace place) override {
    call(hooks_.on_validation_batch_end, t, m, output, batch, place);
  }
  void on_test_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_test_start, t, m); }
  void on_test_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_test_end, t, m); }
  void on_test_epoch_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_test_epoch_start, t, m); }
  void on_test_epoch_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_test_epoch_end, t, m); }
  void on_test_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override {
    call(hooks_.on_test_batch_start, t, m, batch, place);
  }
  void on_test_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                         BatchPlace place) override {
    call(hooks_.on_test_batch_end, t, m, output, batch, place);
  }
  void on_predict_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_predict_start, t, m); }
  void on_predict_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_predict_end, t, m); }
  void on_predict_epoch_start(Trainer& t, TrainerModule& m) override { call(hooks_.on_predict_epoch_start, t, m); }
  void on_predict_epoch_end(Trainer& t, TrainerModule& m) override { call(hooks_.on_predict_epoch_end, t, m); }
  void on_predict_batch_start(Trainer& t, TrainerModule& m, const BatchView& batch, BatchPlace place) override {
    call(hooks_.on_predict_batch_start, t, m, batch, place);
  }
  void on_predict_batch_end(Trainer& t, TrainerModule& m, const StepOutput& output, const BatchView& batch,
                            BatchPlace place) override {
    call(hooks_.on_predict_batch_end, t, m, output, batch, place);
  }
  void on_before_zero_grad(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) override {
    call(hooks_.on_before_zero_grad, t, m, optimizer);
  }
  void on_before_backward(Trainer& t, TrainerModule& m, const at::Tensor& loss) override {
    call(hooks_.on_before_backward, t, m, loss);
  }
  void on_after_backward(Trainer& t, TrainerModule& m) override { call(hooks_.on_after_backward, t, m); }
  void on_before_optimizer_step(Trainer& t, TrainerModule& m, ModuleOptimizer& optimizer) override {
    call(hooks_.on_before_optimizer_step, t, m, optimizer);
  }
  void on_exception(Trainer& t, TrainerModule& m, const std::exception_ptr& error) override {
    call(hooks_.on_exception, t, m, error);
  }
  void on_save_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) override {
    call(hooks_.on_save_checkpoint, t, m, checkpoint);
  }
  void on_load_checkpoint(Trainer& t, TrainerModule& m, State& checkpoint) override {
    call(hooks_.on_load_checkpoint, t, m, checkpoint);
  }

 private:
  template <class F, class... A>
  static void call(const F& hook, A&&... arguments) {
    if (hook) hook(std::forward<A>(arguments)...);
  }

  LambdaHooks hooks_;
};

using LoggingInterval = Word<trainer::LoggingIntervalWords>;

/// What a LearningRateMonitor logs, with Lightning's names and defaults.
struct LearningRateMonitorOptions {
  std::string log_key_prefix = {};  ///< prefix of every name
  bool log_momentum = false;        ///< also log "lr-SGD-momentum": the momentum, or the first beta
  bool log_weight_decay = false;    ///< also log "lr-SGD-weight_decay"
  /// "step": every log_every_n_steps; "epoch": at the start of each epoch; "schedule": at the interval of each
  /// schedule.
  LoggingInterval logging_interval = "schedule";
};

/// Logs the learning rates as "lr-SGD"; several optimizers of one type as "lr-SGD", "lr-SGD-1"; several parameter
/// groups as "lr-SGD/pg1", "lr-SGD/pg2"; or under the name in the LRSchedulerConfig. The rates are also in
/// callback_metrics(). Optimizers without a scheduler are logged as well.
class LearningRateMonitor : public Callback {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {}) : options_(std::move(options)) {}
  /// Throws: UsageError (MU433) if the Trainer has no logger.
  void on_train_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_epoch_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_batch_start(Trainer& trainer, TrainerModule& module, const BatchView& batch, BatchPlace place) override;

 private:
  void log(Trainer& trainer, ScheduleInterval interval) const;

  LearningRateMonitorOptions options_;
};

/// A summary of a module and its submodules. A parameter that several submodules share counts once in each of them, and
/// once in a total. Sharded parameters count in full.
struct ModuleSummary {
  struct Row {
    std::string name, type;
    int64_t parameters = 0;
    bool training = true;
  };
  std::vector<Row> rows = {};    ///< one per submodule, down to a depth; children follow their parent
  int64_t other_parameters = 0;  ///< parameters of the module itself
  int64_t bytes = 0;             ///< size of all parameters
  int64_t flops = 0;             ///< of a forward on an example; 0: not measured
  int64_t trainable = 0;
  int64_t frozen = 0;
  int64_t modules_in_train = 0, modules_in_eval = 0;  ///< counts of submodules at any depth
  int64_t total() const noexcept { return trainable + frozen; }
  /// The summary as a table with totals.
  std::string text() const;
};

/// `max_depth`: 1 for the module's children, 2 for their children too, -1 for all, 0 for totals only.
/// Throws: ConfigError (MU451) for a depth below -1.
ModuleSummary summarize(const torch::nn::Module& module, int max_depth = 1);

/// How a ModelSummary is shown.
struct ModelSummaryOptions {
  /// Runs forward on an example, as [](TrainerModule& module) { static_cast<Net&>(module).forward(x); }: the summary
  /// then shows the flops of that forward. Called in eval mode, on every rank; random states are restored afterwards.
  std::function<void(TrainerModule&)> example = {};
  int max_depth = 1;  ///< as in summarize(); 0: nothing is shown
  std::FILE* stream = stderr;
};

/// Shows a summary of the module at the beginning of fit(), on the main rank. The Trainer adds one unless its options
/// switch it off.
/// Collective: on_fit_start(), with an example.
class ModelSummary : public Callback {
 public:
  /// Throws: ConfigError (MU451) for a max_depth below -1.
  explicit ModelSummary(ModelSummaryOptions options = {});
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;

 private:
  ModelSummaryOptions options_;
};

/// Options of OnExceptionCheckpoint.
struct OnExceptionCheckpointOptions {
  std::filesystem::path dirpath = {};  ///< empty: "checkpoints" in the Trainer's default_root_dir
  std::string filename = "on_exception";
};

/// Saves a checkpoint if an exception ends fit(), and removes it once a fit() succeeds. A checkpoint from inside a
/// batch is named "on_exception-in-batch", so that it does not replace one from which training can continue. With this
/// callback, fit() without a ckpt_path uses "last", so that a restarted program continues. All ranks must throw: if
/// only some do, no checkpoint is written, and a warning is logged.
class OnExceptionCheckpoint : public Callback {
 public:
  /// Throws: ConfigError (MU451) for an empty filename.
  explicit OnExceptionCheckpoint(OnExceptionCheckpointOptions options = {});
  /// The checkpoint's folder. Requires: setup() was called.
  const std::filesystem::path& ckpt_path() const noexcept { return path_; }

  Place place() const override { return Place::last; }
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_exception(Trainer& trainer, TrainerModule& module, const std::exception_ptr& error) override;
  void on_fit_end(Trainer& trainer, TrainerModule& module) override;

 private:
  std::filesystem::path inside_batch() const;

  OnExceptionCheckpointOptions options_;
  std::filesystem::path path_;
  bool fits_ = false;  // set during a fit()
};

using WriteInterval = Word<trainer::WriteIntervalWords>;

/// Base class of callbacks that write the predictions of predict(): override one or both of the write functions. Every
/// rank writes its own predictions; with EvaluateOptions::return_predictions = false, predict() keeps none.
class PredictionWriter : public Callback {
 public:
  using Indices = std::vector<int64_t>;
  explicit PredictionWriter(WriteInterval write_interval = "batch") : interval_(write_interval) {}

  /// Called after each batch. `batch_indices`: the dataset indices of its samples; for a stream, their positions.
  virtual void write_on_batch_end(Trainer&, TrainerModule&, const StepOutput& /*prediction*/,
                                  const Indices& /*batch_indices*/, const BatchView&, BatchPlace) {}
  /// Called at the end, with the predictions and indices of each loader's batches.
  virtual void write_on_epoch_end(Trainer&, TrainerModule&, const std::vector<std::vector<StepOutput>>& /*predictions*/,
                                  const std::vector<std::vector<Indices>>& /*batch_indices*/) {}

  void on_predict_epoch_start(Trainer& trainer, TrainerModule& module) override;
  void on_predict_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                            BatchPlace place) override;
  void on_predict_epoch_end(Trainer& trainer, TrainerModule& module) override;

 private:
  WriteInterval interval_;
  std::vector<std::vector<StepOutput>> predictions_;
  std::vector<std::vector<Indices>> indices_;
};

/// How a TrainerProgressBar shows a run.
struct TrainerProgressBarOptions {
  int64_t refresh_rate = 1;    ///< batches between two updates; 0: nothing is shown
  ProgressOptions shown = {};  ///< stream and style; by default a redrawn line on a terminal, else a few lines
};

/// Shows each training epoch, validation, sanity check, test and prediction as a bar, with the values logged with
/// prog_bar and the version of the logger's run ("v_num"). Only the main rank shows it. It never waits for a device:
/// values that a device computes change when Trainer::logs_this_step() is true. The Trainer adds one unless its options
/// switch it off.
class TrainerProgressBar : public Callback {
 public:
  /// Throws: ConfigError (MU451) for a negative refresh_rate.
  explicit TrainerProgressBar(TrainerProgressBarOptions options = {});

  /// The metrics after the bar. Override it to show others.
  virtual Metrics get_metrics(const Trainer& trainer) const;
  void disable() { enabled_ = false; }
  void enable() { enabled_ = true; }

  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void teardown(Trainer&, TrainerModule&, Stage) override { evaluation_ = training_ = {}; }
  void on_train_batch_start(Trainer& trainer, TrainerModule& module, const BatchView& batch, BatchPlace place) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) override {
    advance(training_, trainer);
  }
  void on_train_epoch_end(Trainer& trainer, TrainerModule&) override { end(training_, trainer); }
  void on_validation_start(Trainer& trainer, TrainerModule& module) override;
  void on_validation_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                               BatchPlace) override {
    advance(evaluation_, trainer);
  }
  void on_validation_end(Trainer& trainer, TrainerModule&) override { end(evaluation_, trainer); }
  void on_test_start(Trainer& trainer, TrainerModule&) override { begin(evaluation_, trainer, "Test", Stage::test); }
  void on_test_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) override {
    advance(evaluation_, trainer);
  }
  void on_test_end(Trainer& trainer, TrainerModule&) override { end(evaluation_, trainer); }
  void on_predict_start(Trainer& trainer, TrainerModule&) override {
    begin(evaluation_, trainer, "Prediction", Stage::predict);
  }
  void on_predict_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                            BatchPlace) override {
    advance(evaluation_, trainer);
  }
  void on_predict_end(Trainer& trainer, TrainerModule&) override { end(evaluation_, trainer); }

 private:
  struct Bar {
    std::shared_ptr<Progress> shown = {};
    int64_t waiting = 0;  // batches done since the last update
  };
  bool shows() const { return main_ && enabled_ && options_.refresh_rate > 0; }
  void begin(Bar& bar, const Trainer& trainer, const std::string& title, Stage stage) const;
  void advance(Bar& bar, const Trainer& trainer) const;
  void end(Bar& bar, const Trainer& trainer) const;
  void set_metrics(Bar& bar, const Trainer& trainer) const;

  TrainerProgressBarOptions options_;
  bool enabled_ = true;
  bool main_ = true;
  Bar training_, evaluation_;
};

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
  void on_train_end(Trainer&, TrainerModule&) override { finish(Stage::fit); }
  void on_exception(Trainer& trainer, TrainerModule& module, const std::exception_ptr& error) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_start(Trainer&, TrainerModule&) override { start(Stage::validate); }
  void on_validation_end(Trainer&, TrainerModule&) override { finish(Stage::validate); }
  void on_test_start(Trainer&, TrainerModule&) override { start(Stage::test); }
  void on_test_end(Trainer&, TrainerModule&) override { finish(Stage::test); }

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
