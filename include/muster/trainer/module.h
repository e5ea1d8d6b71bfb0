#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "muster/trainer/module_optimizer.h"
#include "muster/trainer/optimizers.h"
#include "muster/trainer/options.h"
#include "muster/tree/detail/named_fields.h"
#include "muster/tree/state.h"

namespace muster {

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
struct TrainedModule;

/// Which Trainer has prepared a module. A copy of a module is not prepared; the end of a module ends its preparation.
class PreparedBy {
 public:
  PreparedBy() = default;
  PreparedBy(const PreparedBy&) noexcept {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it assigns nothing
  PreparedBy& operator=(const PreparedBy&) noexcept { return *this; }
  ~PreparedBy();
  void set(const TrainerModule& module, const std::shared_ptr<TrainedModule>& by);
  /// nullptr: none, or it has another module by now.
  std::shared_ptr<TrainedModule> get() const;

 private:
  const TrainerModule* module_ = nullptr;
  std::weak_ptr<TrainedModule> by_;
};
}  // namespace trainer

/// Base class of what a Trainer trains: a torch::nn::Module, with any forward, that knows how it is trained. Its steps
/// are ordinary members. The compiler finds them where the module meets its data, so a batch has the loader's type:
///   torch::Tensor training_step(Batch& batch, int64_t batch_idx)   the loss; or a struct or map with `loss`; or a
///                                                                  std::optional of one, empty to leave the batch out
///   validation_step, test_step, predict_step(batch, batch_idx[, dataloader_idx])   return anything
///   on_{train,validation,test}_batch_{start,end}, on_predict_batch_{start,end}
///   on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer
///   {train,val,test,predict}_dataloader()   any muster::DataLoader, or a std::tuple or std::vector of them
/// All other hooks are virtual. A step runs in the strategy's forward scope: it may call forward of the module and of
/// its parts. Thread safety: one thread at a time. All hooks run on every rank.
class TrainerModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// False: training_step() calls manual_backward() and steps its optimizers itself. Set it in the constructor.
  bool automatic_optimization = true;

  /// They replace those of the same class in the Trainer's options.
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
  /// Called only if overridden; otherwise every submodule gets back the mode that it had.
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
  /// Calls clip_gradients() if the Trainer's options clip.
  virtual void configure_gradient_clipping(ModuleOptimizer& optimizer, const std::optional<GradientClipOptions>& clip);
  /// `metric`: that of ReduceLROnPlateau. Called after an update that was made: on a device under loss scaling as soon
  /// as that is known, before the next update.
  virtual void lr_scheduler_step(const Scheduler& scheduler, std::optional<double> metric);

  /// Adds what else is to be saved.
  virtual void on_save_checkpoint(State& /*checkpoint*/) {}
  /// Receives all but the weights of a checkpoint before anything is loaded.
  virtual void on_load_checkpoint(State& /*checkpoint*/) {}

  /// Keeps named bools, numbers and texts that the module was made with; lists and maps of them, too. Checkpoints have
  /// them, and the logger gets them where a run begins, once.
  void save_hyperparameters(State values) { hyperparameters_ = std::move(values); }
  /// The same of a plain struct of options, for load_from_checkpoint(). For the constructor.
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
  /// Logs what a metric object gathers in this epoch: one value of all ranks, known when the epoch ends. Then the
  /// metric begins anew, and its value() stays; one that is not a number is only there. Call it in the step that
  /// updates it. Requires: the metric lives until the epoch ends; muster/runtime/metrics.h has some and their base.
  /// Throws: UsageError (MU441) as above; (MU458) for on_step, or for one metric under two names.
  void log(std::string_view name, Metric& metric, const LogOptions& options = {});
  void log_dict(const std::vector<std::pair<std::string, at::Tensor>>& values, const LogOptions& options = {});

  /// In manual optimization: backward, with the hooks before and after it. Collective.
  void manual_backward(const at::Tensor& loss);
  /// In manual optimization: gradients stay on this rank while the returned object lives; the next backward after it
  /// communicates their sum. Every rank does the same.
  [[nodiscard("name the scope: auto quiet = no_sync()")]] runtime::NoSyncScope no_sync();
  const std::vector<ModuleOptimizer>& optimizers() const;
  /// The same, one by one: auto [g, d] = optimizers<2>(). Throws: UsageError (MU443) if there are not N.
  template <std::size_t N>
  std::array<ModuleOptimizer, N> optimizers() const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::array{optimizer(I, N)...};
    }(std::make_index_sequence<N>());
  }
  const std::vector<Scheduler>& lr_schedulers() const;
  ToggledOptimizer toggled_optimizer(const ModuleOptimizer& one) const { return {one, optimizers()}; }
  /// Collective: as Training::clip_grad_norm_().
  void clip_gradients(ModuleOptimizer& optimizer, const GradientClipOptions& options);

  int64_t current_epoch() const;
  int64_t global_step() const;
  c10::Device device() const;
  /// Throws, as all functions here that need a run: UsageError (MU446) outside of one.
  Trainer& trainer() const;
  void freeze();
  void unfreeze();

 private:
  friend class trainer::Core;
  trainer::Core& core() const;
  ModuleOptimizer optimizer(std::size_t index, std::size_t count) const;

  State hyperparameters_;
  trainer::Core* core_ = nullptr;  // during a run
  trainer::PreparedBy prepared_;   // whose model holds the parameters
};

}  // namespace muster
