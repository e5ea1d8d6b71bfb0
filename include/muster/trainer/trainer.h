#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/format_text.h"
#include "muster/runtime.h"
#include "muster/runtime/model.h"
#include "muster/track/trackers.h"
#include "muster/trainer/callback.h"
#include "muster/trainer/detail/run_inputs.h"
#include "muster/trainer/optimizers.h"
#include "muster/trainer/options.h"

namespace muster {

/// Thrown by fit() after SIGTERM, when every rank has ended its batch and `checkpoint` was saved. Not a std::exception,
/// so that programs that catch and report errors let it pass. It need not be caught: uncaught, it ends the process with
/// exit code 143. See docs/decisions/0108-how-a-signal-ends-training.md.
struct Terminated {
  static constexpr int kExitCode = 143;   ///< 128 + SIGTERM
  std::filesystem::path checkpoint = {};  ///< empty: the signal came after the end of fit()
};

namespace trainer {
class Core;
}

/// Records of a Trainer for callbacks, in addition to the state of its loops: logged and shown values, and training
/// objects.
/// Thread safety: as Trainer.
class TrainerRecords {
 public:
  /// The last value of each name that the logger got so far, on the main rank.
  const Metrics& logged_metrics() const;
  /// The values logged with prog_bar that are known without waiting for a device; all of them if logs_this_step() is
  /// true.
  Metrics progress_bar_metrics() const;
  /// The trackers of TrainerOptions::logger: logger().log({{"image", png}}, log_step()). On ranks other than the main
  /// one, and without a logger, they do nothing.
  const Trackers& logger() const;
  /// The folder of the logger's run, equal on every rank; empty without a logger.
  const std::filesystem::path& log_dir() const;
  /// The step under which values of the current batch are logged: the number of batches that have ended an accumulation
  /// window so far.
  int64_t log_step() const;
  /// Whether values of the current batch are logged, according to log_every_n_steps.
  bool logs_this_step() const;
  /// Logs values that belong to no hook, under log_step(), and adds them to callback_metrics().
  void log_metrics(const Metrics& values);
  /// Sets the number of batches per optimizer step, from the next batch on. Requires: no accumulation window is open.
  void set_accumulate_grad_batches(int batches);
  /// The number of batches of each loader in a pass of this rank; nullopt: unknown. Only during a run of that stage.
  std::vector<std::optional<int64_t>> num_batches(Stage stage) const;
  /// The dataset indices of the samples in the current batch of an evaluation; for a stream, their positions. Empty if
  /// rank 0 reads for all ranks, and outside batches.
  std::vector<int64_t> batch_indices() const;
  /// Whether global_step() may be a multiple of this. Does not wait if global_step() is not known yet.
  bool may_be_step(int64_t multiple_of) const;
  /// Whether fit() validates.
  bool validates() const;
  /// Whether the current batch was the last one of an epoch and a validation follows it.
  bool validates_after_last_batch() const;
  /// Whether a checkpoint that is saved now would be from inside a batch; "last" skips those.
  bool saves_inside_batch() const;
  /// The result of configure_optimizers() in the current run, or in the last one.
  std::vector<Optimizers::Entry> configured_optimizers() const;

 protected:
  TrainerRecords();
  ~TrainerRecords();
  std::unique_ptr<trainer::Core> core_;
};

/// Runs the loops (training with validation, validation, tests and predictions) on any number of ranks, for a
/// TrainerModule and its data. Data are loaders or a DataModule; without data, the module's own loaders are used. See
/// docs/decisions/0100-the-trainers-api.md.
/// Thread safety: one thread at a time. Collective: the constructor and every function that runs or saves.
class Trainer : public TrainerRecords {
 public:
  /// Starts the other local ranks if options.devices asks for them, and joins the group of all ranks.
  /// Throws: ConfigError (MU440), listing everything that is wrong with the options.
  explicit Trainer(const TrainerOptions& options = {});
  /// Closes loggers and the group of all ranks.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains the module, and validates it if it has a validation_step and there is a loader for it.
  /// Throws: UsageError (MU443) for an invalid result of configure_optimizers(), (MU444) if there is no training
  /// loader; ConfigError (MU445) for limits that leave less than one batch; what the hooks throw, after calling
  /// on_exception and teardown.
  template <class Module>
  void fit(Module&& module, const FitOptions& options = {}) {
    run_fit(for_fit<trainer::object_of<Module>>(own_inputs(std::forward<Module>(module))), options);
  }
  /// Trains the module on `data`: a loader, several in a tuple or vector, or a DataModule.
  template <class Module, class Data>
    requires(!std::same_as<std::remove_cvref_t<Data>, FitOptions>)
  void fit(Module&& module, Data&& data, const FitOptions& options = {}) {
    using M = trainer::object_of<Module>;
    constexpr auto kind = trainer::StepKind::training;
    run_fit(for_fit<M>(make_inputs<kind>(std::forward<Module>(module), std::forward<Data>(data))), options);
  }
  /// Trains the module on `train`, and validates it on `val`: loaders, or tuples or vectors of them.
  template <class Module, class Train, class Val>
    requires(!std::same_as<std::remove_cvref_t<Val>, FitOptions>)
  void fit(Module&& module, Train&& train, Val&& val, const FitOptions& options = {}) {
    using M = trainer::object_of<Module>;
    static_assert(trainer::Loaders<Train> && trainer::Loaders<Val>,
                  "fit takes loaders for training and for validation: muster::DataLoader, or a std::tuple or "
                  "std::vector of them");
    auto all = make_inputs<trainer::StepKind::training>(std::forward<Module>(module), std::forward<Train>(train));
    trainer::set_loaders<M, trainer::StepKind::validation, M>(all, std::remove_cvref_t<Val>(std::forward<Val>(val)));
    run_fit(for_fit<M>(std::move(all)), options);
  }

  /// Validates the module on its own val_dataloader(). Returns the values logged for the epoch, for each loader.
  template <class Module>
  std::vector<Metrics> validate(Module&& module, const EvaluateOptions& options = {}) {
    return run_evaluate(own_inputs(std::forward<Module>(module)), trainer::StepKind::validation, options);
  }
  /// Validates the module on `data`: a loader, several in a tuple or vector, or a DataModule. Returns the logged
  /// values, for each loader.
  template <class Module, class Data>
    requires(!std::same_as<std::remove_cvref_t<Data>, EvaluateOptions>)
  std::vector<Metrics> validate(Module&& module, Data&& data, const EvaluateOptions& options = {}) {
    constexpr auto kind = trainer::StepKind::validation;
    return run_evaluate(make_inputs<kind>(std::forward<Module>(module), std::forward<Data>(data)), kind, options);
  }
  /// Tests the module on its own test_dataloader(). Returns the logged values, for each loader.
  template <class Module>
  std::vector<Metrics> test(Module&& module, const EvaluateOptions& options = {}) {
    return run_evaluate(own_inputs(std::forward<Module>(module)), trainer::StepKind::test, options);
  }
  /// Tests the module on `data`: a loader, several in a tuple or vector, or a DataModule. Returns the logged values,
  /// for each loader.
  template <class Module, class Data>
    requires(!std::same_as<std::remove_cvref_t<Data>, EvaluateOptions>)
  std::vector<Metrics> test(Module&& module, Data&& data, const EvaluateOptions& options = {}) {
    constexpr auto kind = trainer::StepKind::test;
    return run_evaluate(make_inputs<kind>(std::forward<Module>(module), std::forward<Data>(data)), kind, options);
  }

  /// Returns the results of predict_step, or forward, for each batch of this rank: a vector; with several loaders, a
  /// vector or tuple of vectors.
  template <class Module>
  auto predict(Module& module, const EvaluateOptions& options = {}) {
    return predict(module, module, options);
  }
  /// Predicts for the batches of `data`: a loader, several in a tuple or vector, or a DataModule.
  template <class Module, class Data>
    requires(!std::same_as<std::remove_cvref_t<Data>, EvaluateOptions>)
  auto predict(Module&& module, Data&& data, const EvaluateOptions& options = {}) {
    using All = trainer::Predictions<trainer::object_of<Module>, std::remove_cvref_t<decltype(loaders_in(data))>>;
    typename All::type all;
    constexpr auto kind = trainer::StepKind::predict;
    const auto keep = [&](StepOutput& output, int64_t dataloader_idx) {
      if (options.return_predictions) All::keep(all, output, dataloader_idx);
    };
    const auto of_loaders =
        run_evaluate(make_inputs<kind>(std::forward<Module>(module), std::forward<Data>(data)), kind, options, keep);
    if (options.return_predictions) All::complete(all, of_loaders.size());
    return all;
  }

  /// Ends training on all ranks after the current batch, once min_epochs and min_steps are reached. A call on one rank
  /// is enough. With several ranks, the others learn of it with the gradients: a call within an accumulation window
  /// takes effect at the window's end; under "ddp", a call between on_after_backward() and on_train_batch_end() takes
  /// effect after the next batch.
  void stop();
  /// Whether training is going to end; with several ranks, also true if only this rank has called stop() so far.
  bool should_stop() const;
  /// Replaces max_epochs, so that another fit() continues where the last one ended. -1: no limit.
  /// Throws: ConfigError (MU440) for less than -1.
  void set_max_epochs(int64_t epochs);
  /// The current epoch, from 0; after fit() the number of epochs run.
  int64_t current_epoch() const;
  /// Updates of all optimizers. On a device under loss scaling, waits until it is known whether the last step was
  /// skipped.
  int64_t global_step() const;
  /// Updates of one optimizer in the whole fit(), for schedules that configure_optimizers() creates; nullopt: no limit.
  /// Creates the training loaders. Throws: UsageError (MU446) outside a run.
  std::optional<int64_t> estimated_stepping_batches();
  /// Whether fit() is running the validation steps before training.
  bool sanity_checking() const;
  /// Whether fit() is running and is past the sanity check.
  bool fitting() const;
  /// Whether validation runs at the ends of epochs only, after each one, or not at all.
  bool validates_at_epoch_end_only() const;
  /// The last value of everything logged, by name. Callbacks watch these.
  const Metrics& callback_metrics() const;
  /// The options, as given by the program and from outside (launcher, variables).
  const TrainerOptions& options() const;
  /// The callbacks, in the order in which they are called.
  const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  /// Saves model, optimizers, schedules, progress and states of callbacks. Collective.
  void save_checkpoint(const std::filesystem::path& folder, const SaveCheckpointOptions& how = {});
  /// Waits until an asynchronous save is on disk. Collective.
  void wait_for_save();
  /// The prepared module. If another Trainer runs the module, it takes the module over, and this Trainer prepares it
  /// again in its next run. Throws: UsageError (MU446) before the first run, or after another Trainer has taken the
  /// module.
  const Model<torch::nn::Module>& model() const;
  /// Prints a line, on the main rank only: print("epoch {}: loss {:.4f}", epoch, loss).
  template <class... A>
  void print(FormatText<std::type_identity_t<A>...> text, const A&... values) const {
    runtime().print(text, values...);
  }
  /// The runtime, for rank(), gather(), reduce(), plan().
  const Runtime& runtime() const;

 private:
  template <class M>
  static trainer::RunInputs for_fit(trainer::RunInputs inputs) {
    static_assert(trainer::member::training_step::in<M>, "fit takes a module with training_step(batch, batch_idx)");
    return inputs;
  }
  template <trainer::StepKind K, class Module, class Data>
  static trainer::RunInputs make_inputs(Module&& module, Data&& data) {
    using M = trainer::object_of<Module>;
    auto pointer = trainer::object_pointer(std::forward<Module>(module));
    if constexpr (trainer::Loaders<Data>) {
      auto inputs = trainer::inputs_of(pointer);
      trainer::set_loaders<M, K, M>(inputs, std::remove_cvref_t<Data>(std::forward<Data>(data)));
      inputs.unused_loaders[static_cast<std::size_t>(trainer::StepKind::validation)] =
          trainer::member::val_dataloader::in<M>;
      return inputs;
    } else {
      return trainer::inputs_with(pointer, trainer::object_pointer(std::forward<Data>(data)));
    }
  }
  template <class Module>
  static trainer::RunInputs own_inputs(Module&& module) {
    auto pointer = trainer::object_pointer(std::forward<Module>(module));
    return trainer::inputs_with(pointer, pointer);
  }
  template <class Data>
  static auto loaders_in(Data& data) {
    if constexpr (trainer::Loaders<Data>) return data;
    else return trainer::member::predict_dataloader::call(*trainer::object_pointer(data));
  }

  void run_fit(trainer::RunInputs inputs, const FitOptions& options);
  /// Returns the values of each loader.
  std::vector<Metrics> run_evaluate(trainer::RunInputs inputs, trainer::StepKind kind, const EvaluateOptions& options,
                                    const trainer::KeepOutput& keep = nullptr);
};

}  // namespace muster
