#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "chosen_checkpoint.h"
#include "experiment_log.h"
#include "hook_calls.h"
#include "limits.h"
#include "log_book.h"
#include "muster/runtime.h"
#include "muster/runtime/opened_checkpoint.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/trainer.h"
#include "progress.h"
#include "run_clock.h"
#include "stop_vote.h"
#include "termination.h"
#include "trained_module.h"
#include "training_pass.h"
#include "window_begin.h"

namespace muster::trainer {

using KeepOutput = std::function<void(StepOutput&, int64_t dataloader_idx)>;

/// The state and the loops of a Trainer; each loop has its own source file.
class Core {
 public:
  Core(Trainer& trainer, const TrainerOptions& options);

  void fit(RunInputs inputs, const FitOptions& how);
  std::vector<Metrics> evaluate(RunInputs inputs, StepKind kind, const EvaluateOptions& how, const KeepOutput& keep);
  void save_checkpoint(const std::filesystem::path& folder, const SaveCheckpointOptions& how);
  std::optional<int64_t> estimated_stepping_batches();

  // called by modules and their optimizers
  void backward(const at::Tensor& loss);
  at::Tensor step(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure);
  void clip(ModuleOptimizer& optimizer, const GradientClipOptions& how);
  void set_accumulate_grad_batches(int batches);
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options);
  void log(std::string_view name, double value, const LogOptions& options);
  void log(std::string_view name, Metric& metric, const LogOptions& options);
  void manual_backward(const at::Tensor& loss);
  muster::runtime::NoSyncScope no_sync();

  /// Updates of all optimizers. The host waits if the last one is not known yet, as on a device under loss scaling.
  int64_t global_step() { return trained_module->wait_for_steps(), progress.global_step; }
  std::vector<int64_t> batch_indices() const;
  /// Whether values of the current training batch are sent to the logger.
  bool logs_this_step() const noexcept;
  /// Number of batches of each loader in a pass; nullopt: unknown. Makes the loaders.
  std::vector<std::optional<int64_t>> batches_of_pass(StepKind kind);
  bool validates() const;
  bool validates_in_epoch() const;
  bool inside_batch() const noexcept;  // a checkpoint saved now could not be resumed bit-exactly
  const std::optional<Stage>& stage() const noexcept { return stage_; }

  Trainer& trainer;
  TrainerOptions options;
  Runtime runtime;
  HookCalls hooks;
  Progress progress;
  StopVote stop{runtime};
  bool sanity_checking = false, training = false;  // training: fit() has loaded everything
  LatestMetrics latest;
  ExperimentLog experiment;
  const std::shared_ptr<TrainedModule> trained_module = std::make_shared<TrainedModule>();

 private:
  // setup.cpp
  void refuse_nested_run(const RunInputs& inputs) const;
  void run(RunInputs inputs, Stage stage, const std::function<void()>& body);
  void begin(Stage stage);
  void end(Stage stage);
  void fail(Stage stage, const std::exception_ptr& error, bool torn_down) noexcept;
  std::vector<std::shared_ptr<Callback>> all_callbacks();
  void prepare_data();
  void prepare_model();
  void set_up_optimizers();
  void add_schedule(TrainedOptimizer& trained, const LRSchedulerConfig& config);
  // data_setup.cpp
  PreparedLoaders& setup_data(StepKind kind);
  void forget_data(StepKind kind);
  void note_validation_loaders();
  void transfer(const StepTable& steps, void* batch, int64_t loader);
  // fit_loop.cpp
  void fit_impl(const FitOptions& how);
  void sanity_check();
  void train();
  bool steps_done();
  bool done();
  bool may_stop();
  std::string nothing_to_train();
  bool validation_due(bool last, const std::optional<int64_t>& interval);
  void read_clock();
  // training_epoch.cpp
  void reload_dataloaders();
  void training_epoch();
  bool training_batch(const StepTable& steps, void* batch, bool last);
  void end_epoch();
  void finish_epoch();
  // optimization.cpp
  StepOutput training_step(const StepTable& steps, void* batch);
  void optimize(const StepTable& steps, void* batch, bool last, StepOutput& output);
  void optimize_micro_batch(const StepTable& steps, void* batch, bool ends_window, bool last, StepOutput& output);
  bool some_rank_has_loss(const TrainedOptimizer& trained);
  bool make_gradients(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure, at::Tensor& loss);
  bool step_by_closure(TrainedOptimizer& trained, const ModuleOptimizer::Closure& closure, at::Tensor& loss);
  void compare_schedules();
  void step_plateau_schedules(ScheduleInterval interval);
  void finish_batch(const std::optional<int64_t>& interval);
  void finish_validation();
  // evaluation_loop.cpp
  void validate_in_fit();
  /// `most`: the most batches to take of each loader.
  std::vector<Metrics> evaluation_epoch(StepKind kind, std::optional<int64_t> most, const KeepOutput& keep);
  void evaluate_loader(StepKind kind, std::size_t index, int64_t first, std::optional<int64_t> most,
                       const KeepOutput& keep);
  void evaluation_batch(StepKind kind, const StepTable& steps, void* batch, const KeepOutput& keep);
  // experiment_steps.cpp
  void log_hyperparameters();
  void warn_log_every_n_steps();
  void log_training_step();
  void log_epoch(LogBook& book, int64_t step);
  void log_evaluation_step(StepKind kind);
  // checkpoints.cpp
  State trainer_state();
  void load_for_fit(const std::filesystem::path& folder);
  void load_foreign();
  void load_lightning(const std::filesystem::path& file);
  void load_position(const State& state);
  void load_progress();
  // window_begin.cpp
  void note_window();
  void go_back_to_window_begin();
  void count_batches_done();
  void load_weights(const std::filesystem::path& folder);
  void load_callbacks(State& state);
  // chosen_checkpoint.cpp
  std::filesystem::path newest_checkpoint(std::filesystem::file_time_type since) const;
  std::filesystem::path checkpoint_after_restart();  // where fit() continues; empty: at the beginning
  /// The checkpoint that ckpt_path names, equal on every rank; empty if it names none or, unless `required`, a missing
  /// one.
  std::filesystem::path resolved(const std::string& ckpt_path, bool required) const;
  // resuming.cpp
  std::string modes_text() const;
  void load_modes(const std::string& modes);
  State state_of_rank();
  State states_of_ranks();
  void load_states_of_ranks(const State::List& all, bool restarts_window);
  /// Calls the callbacks that monitor a metric or save. After a resume, continue_monitors() calls those that remain.
  void call_monitors(SavePoint point, Hook hook, c10::function_ref<void(Callback&)> call);
  void continue_monitors();
  void finish_savers();
  void resume_epoch_end();
  void resume_batch_end(const std::optional<int64_t>& interval);
  // termination.cpp
  void handle_votes();
  void save_for_signal(int signal);
  // callback.cpp
  bool is_barebones();  // warns once that nothing is logged
  LogContext context_of_hook() const;
  LogBook& book() { return evaluating_ ? evaluation_book_ : training_book_; }
  RunInputs inputs_;
  std::optional<Stage> stage_;
  std::array<PreparedLoaders, kStepKinds> prepared_loaders_;
  std::optional<OpenedCheckpoint> resumed_checkpoint_;  // set while fit() resumes
  LogBook training_book_{latest}, evaluation_book_{latest};
  LogContext context_;
  BatchPlace place_;
  AccumulationWindow window_;
  RunClock clock_;
  const data::Pass* evaluated_pass_ = nullptr;   // pass that an evaluation takes batches from
  std::optional<TerminationScope> termination_;  // set during fit()
  bool failed_ = false;                          // an exception other than Terminated ends the run
  const Callback* monitor_ = nullptr;            // callback that is being called
  std::string resumed_saver_;                    // key of the callback that wrote the checkpoint
  State resumed_ranks_, resumed_loaders_;        // states from the checkpoint, until the loaders are prepared
  std::string modes_;                            // modes of the submodules, while a validation changes them
  std::set<StepKind> prepared_kinds_;            // kinds of loaders that exist and are in checkpoints
  std::optional<int64_t> validation_loaded_;     // epoch in which, or for which, the loaders of validation were made
  int64_t first_epoch_ = 0;                      // first epoch of the current fit()
  bool filler_ = false;                          // the current batch has no real sample, so nothing of it is kept
  bool evaluating_ = false, has_fitted_ = false, said_barebones_ = false;
  bool validation_interval_passed_ = false;  // by the main rank's clock
};

}  // namespace muster::trainer
