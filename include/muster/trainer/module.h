#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "muster/trainer/optimizers.h"
#include "muster/trainer/options.h"
#include "muster/tree/detail/named_fields.h"
#include "muster/tree/state.h"

namespace muster {

namespace trainer {
class Optimization;
class ScheduledUpdates;
}  // namespace trainer

/// An optimizer of a TrainerModule during a run. A cheap handle, valid until the run ends.
/// Thread safety: one thread at a time.
class ModuleOptimizer {
 public:
  using Closure = std::function<at::Tensor()>;
  explicit ModuleOptimizer(trainer::ScheduledUpdates& updates) : updates_(&updates) {}

  /// Makes one update, after the hooks before it. In automatic optimization it must be given the closure of
  /// optimizer_step(), which runs training_step() and backward(). Returns the loss of the closure; undefined without a
  /// closure.
  /// Collective. Throws: UsageError (MU448) without a closure in automatic optimization; as Optimizer::step().
  at::Tensor step(const Closure& closure = nullptr) const;
  void zero_grad(bool set_to_none = true) const;
  /// The number of updates so far. On a device under loss scaling, waits until it is known whether the last step was
  /// skipped.
  int64_t steps() const;
  /// The user's parameter groups. If a schedule waits for the last step, this function waits as steps() does.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  /// The user's optimizer, for its options and its state. Waits as steps() does.
  torch::optim::Optimizer& inner() const;
  torch::optim::Optimizer* operator->() const { return &inner(); }

 private:
  friend class trainer::Optimization;
  trainer::ScheduledUpdates* updates_;
};

/// Makes parameters that belong only to other optimizers require no gradients while it lives.
class [[nodiscard("name the scope: auto only = toggled_optimizer(g)")]] ToggledOptimizer {
 public:
  ToggledOptimizer(const ModuleOptimizer& one, const std::vector<ModuleOptimizer>& all);
  ToggledOptimizer(const ToggledOptimizer&) = delete;
  ToggledOptimizer& operator=(const ToggledOptimizer&) = delete;
  ~ToggledOptimizer();

 private:
  std::vector<at::Tensor> frozen_;
};

class Callback;
class Metric;
class Scheduler;
class Trainer;
class TrainerModule;
namespace runtime {
class NoSyncScope;
}
namespace trainer {
class Core;
struct Preparation;

/// The Trainer that has prepared a module. A copy of a module is not prepared; destroying a module ends its
/// preparation.
class PreparedBy {
 public:
  PreparedBy() = default;
  PreparedBy(const PreparedBy&) noexcept {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it assigns nothing
  PreparedBy& operator=(const PreparedBy&) noexcept { return *this; }
  ~PreparedBy();
  void set(const TrainerModule& module, const std::shared_ptr<Preparation>& by);
  /// nullptr if no Trainer has prepared the module, or if the Trainer has another module now.
  std::shared_ptr<Preparation> get() const;

 private:
  const TrainerModule* module_ = nullptr;
  std::weak_ptr<Preparation> by_;
};
}  // namespace trainer

/// Base class of modules that a Trainer trains: a torch::nn::Module, with any forward, that defines its training. The
/// steps are ordinary members. They are found at compile time when the module is passed with its data, so a batch has
/// the loader's type:
///   torch::Tensor training_step(Batch& batch, int64_t batch_idx)   the loss; or a struct or map with `loss`; or a
///                                                                  std::optional of one, empty to leave the batch out
///   validation_step, test_step, predict_step(batch, batch_idx[, dataloader_idx])   return anything
///   on_{train,validation,test}_batch_{start,end}, on_predict_batch_{start,end}
///   on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer
///   {train,val,test,predict}_dataloader()   any muster::DataLoader, or a std::tuple or std::vector of them
/// All other hooks are virtual. A step runs in the strategy's forward scope: it may call forward of the module and of
/// its submodules. Thread safety: one thread at a time. All hooks run on every rank.
class TrainerModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// False: training_step() calls manual_backward() and steps its optimizers itself. Set it in the constructor.
  bool automatic_optimization = true;

  /// Callbacks of the module. They replace callbacks of equal class in the Trainer's options.
  virtual std::vector<std::shared_ptr<Callback>> configure_callbacks() { return {}; }
  /// Called on the first rank of each node, before the others continue.
  virtual void prepare_data() {}
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}
  /// Builds what the constructor left out. It may be called several times.
  virtual void configure_model() { configure_sharded_model(); }
  /// The older name of configure_model(). A class that overrides both does not compile.
  virtual void configure_sharded_model() {}
  virtual Optimizers configure_optimizers() { return {}; }

  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}
  virtual void on_validation_model_zero_grad() { zero_grad(); }
  virtual void on_validation_model_eval() { eval(); }
  virtual void on_test_model_eval() { eval(); }
  virtual void on_predict_model_eval() { eval(); }
  /// Called only if overridden; otherwise the mode of every submodule is restored.
  virtual void on_validation_model_train() { train(); }
  virtual void on_test_model_train() { train(); }
  virtual void on_predict_model_train() { train(); }

  virtual void on_before_zero_grad(ModuleOptimizer&) {}
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  virtual void backward(const at::Tensor& loss);
  virtual void on_after_backward() {}
  virtual void on_before_optimizer_step(ModuleOptimizer&) {}
  /// Calls optimizer.step(closure); the closure runs training_step() and backward().
  virtual void optimizer_step(int64_t epoch, int64_t batch_idx, ModuleOptimizer& optimizer,
                              const ModuleOptimizer::Closure& closure);
  virtual void optimizer_zero_grad(int64_t epoch, int64_t batch_idx, ModuleOptimizer& optimizer);
  /// Calls clip_gradients() if the Trainer's options enable clipping.
  virtual void configure_gradient_clipping(ModuleOptimizer& optimizer, const std::optional<GradientClipOptions>& clip);
  /// Steps a scheduler. `metric`: the metric of ReduceLROnPlateau. Called after each actual update; on a device under
  /// loss scaling, as soon as it is known that there was one, before the next update.
  virtual void lr_scheduler_step(const Scheduler& scheduler, std::optional<double> metric);

  /// Adds further entries to the saved state.
  virtual void on_save_checkpoint(State& /*checkpoint*/) {}
  /// Receives a checkpoint's state, except the weights, before anything is loaded.
  virtual void on_load_checkpoint(State& /*checkpoint*/) {}

  /// Keeps named bools, numbers and texts that the module was created with, and lists and maps of them. Checkpoints
  /// contain them, and the logger gets them once, at the beginning of a run.
  void save_hyperparameters(State values) { hyperparameters_ = std::move(values); }
  /// Keeps the fields of a plain struct of options, for load_from_checkpoint(). Call it in the constructor.
  template <tree::named_fields T>
  void save_hyperparameters(const T& options) {
    hyperparameters_ = tree::state_of(options);
  }
  const State& hyperparameters() const noexcept { return hyperparameters_; }

  /// Logs a value under a name. Collective: with sync_dist, every rank logs it.
  /// Throws: UsageError (MU441) in a hook that cannot log, or for a level that the hook does not have; (MU442) for a
  /// tensor with several elements, a name with "/dataloader_idx_", or other options than before for the same name.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  /// Logs the value of a metric object for this epoch: one value over all ranks, known when the epoch ends. The metric
  /// is then reset but keeps its value(); a value that is not a single number is available only there. Call it in the
  /// step that updates the metric. Requires: the metric lives until the epoch ends; muster/runtime/metrics.h has some
  /// and their base.
  /// Throws: UsageError (MU441) in a hook that cannot log, or for a level that the hook does not have; (MU458) for
  /// on_step, or for one metric under two names.
  void log(std::string_view name, Metric& metric, const LogOptions& options = {});
  void log_dict(const std::vector<std::pair<std::string, at::Tensor>>& values, const LogOptions& options = {});

  /// In manual optimization: runs backward, with the hooks before and after it. Collective.
  void manual_backward(const at::Tensor& loss);
  /// In manual optimization: keeps gradients on this rank while the returned object lives; the next backward afterwards
  /// communicates their sum. Requires: every rank does so.
  [[nodiscard("name the scope: auto quiet = no_sync()")]] runtime::NoSyncScope no_sync();
  const std::vector<ModuleOptimizer>& optimizers() const;
  /// Returns the optimizers as an array: auto [g, d] = optimizers<2>(). Throws: UsageError (MU443) unless there are N.
  template <std::size_t N>
  std::array<ModuleOptimizer, N> optimizers() const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array{optimizer(I, N)...};
    }(std::make_index_sequence<N>());
  }
  const std::vector<Scheduler>& lr_schedulers() const;
  ToggledOptimizer toggled_optimizer(const ModuleOptimizer& one) const { return {one, optimizers()}; }
  /// Collective: as Runtime::clip_grad_norm_().
  void clip_gradients(ModuleOptimizer& optimizer, const GradientClipOptions& options);

  int64_t current_epoch() const;
  int64_t global_step() const;
  c10::Device device() const;
  /// Throws: UsageError (MU446) outside a run, as all functions of this class that need one.
  Trainer& trainer() const;
  void freeze();
  void unfreeze();

 private:
  friend class trainer::Core;
  trainer::Core& core() const;
  ModuleOptimizer optimizer(std::size_t index, std::size_t count) const;

  State hyperparameters_;
  trainer::Core* core_ = nullptr;  // set during a run
  trainer::PreparedBy prepared_;   // the Trainer whose model holds the parameters
};

}  // namespace muster
