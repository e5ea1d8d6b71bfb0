#pragma once

#include "accumulation.h"
#include "alike_generators.h"
#include "loaders_in_use.h"
#include "model_registry.h"
#include "job_state.h"
#include "prepared_optimizer.h"
#include "saves.h"

#include "muster/device/host_memory.h"
#include "muster/base/signals.h"
#include "muster/base/trace.h"
#include "muster/cluster/cluster.h"
#include "muster/cluster/report.h"
#include "muster/data/loader.h"
#include "muster/dist/communicator.h"
#include "muster/optim/scheduler.h"
#include "muster/runtime/callback.h"
#include "muster/runtime/metrics.h"
#include "muster/runtime/model.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/strategy/strategy.h"

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::runtime {

/// What a rank has to tell the others when they ask.
struct Flags {
  std::unique_ptr<SignalWatch> signals;   ///< from catch_signals() on
  bool trigger = false;
};

/// The parts that a Runtime owns.
class Parts : public std::enable_shared_from_this<Parts> {
 public:
  explicit Parts(const RuntimeOptions& options);
  void launch();
  /// To be called when the runtime ends: if an exception ends it, the group of all ranks ends with it, so that none waits.
  void leave_group() noexcept;
  /// Throws: UsageError (MU172) before launch() where several ranks were asked for.
  void require_launched() const;
  std::shared_ptr<PreparedModel> prepare_model(std::shared_ptr<torch::nn::Module> module);
  /// What a module was prepared as; nullptr if it was not.
  std::shared_ptr<PreparedModel> prepared(const torch::nn::Module& module) const { return registry_->find(module); }
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  Scheduler prepare_scheduler(std::shared_ptr<muster::LRScheduler> scheduler);
  Scheduler prepare_scheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler);
  Scheduler prepare_scheduler(std::shared_ptr<torch::optim::ReduceLROnPlateauScheduler> scheduler);
  data::ShardSpec prepare_loader(const data::LoaderState& loader);
  /// The next micro-batch begins, of the loader in use.
  std::shared_ptr<Accumulation> next_micro_batch();
  void backward(const at::Tensor& loss, bool retain_graph);
  double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options);
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Divides gradients by the scale of their loss: those of the optimizers of these parameters, or of all.
  void unscale_gradients(const std::vector<at::Tensor>* of);
  bool optimizer_step_was_skipped() const;
  /// Of these models; of all prepared ones if there is none of them.
  void join_uneven_inputs(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                          const UnevenInputsOptions& options);
  std::string plan() const;
  void set_seed(uint64_t seed, bool per_rank);

  const Cluster& cluster() const noexcept { return cluster_; }
  const dist::Communicator& group() const;
  c10::Device device() const noexcept { return device_; }
  Precision precision() const noexcept { return options_.precision; }
  const std::shared_ptr<Accumulation>& accumulation() const;
  bool launched() const noexcept { return launched_; }
  Flags& flags() noexcept { return flags_; }
  const std::shared_ptr<Trace>& trace() const noexcept { return trace_; }
  const std::vector<std::shared_ptr<Callback>>& callbacks() const noexcept { return options_.callbacks; }
  /// What is prepared from now on communicates in this group, of the same ranks.
  void use_group(const dist::Communicator& group);
  /// Handles were emptied.
  void forget_freed();
  Saves& saves() noexcept { return saves_; }
  const ProjectOptions& project() const noexcept { return options_.project; }
  /// What is alive of all that was prepared and registered.
  JobParts job();
  void keep_loader(const std::shared_ptr<data::LoaderState>& loader) { loaders_.add(loader); }
  std::optional<StepRows> step_rows() const { return loaders_.rows(); }

 private:
  void connect();
  void choose_memory();
  void share_cores();
  void observe_collectives();
  void settle_precision();
  /// An optimizer has stepped; says once if all ranks draw the same random numbers.
  void watch_generators();
  bool scales_losses() const;
  /// A rank whose loss missed these parameters takes part in the reductions of those whose loss did not.
  void meet_other_ranks(const std::vector<at::Tensor>& parameters) const;
  void meet_for_the_only_optimizer() const;
  double loss_scale() const;
  /// What losses are multiplied by now; gradients that are there from others follow.
  double follow_loss_scale() const;
  void scale_all_gradients(double factor) const;
  /// How many times a scheduler of these optimizers steps when it is asked to.
  std::function<int()> scheduler_turns(std::vector<std::weak_ptr<PreparedOptimizer>> optimizers) const;
  void for_each_optimizer(const std::function<void(PreparedOptimizer&)>& f) const;
  /// Optimizers, loss scales and schedulers get the states they have on this rank.
  void share_training_states(int rank);

  RuntimeOptions options_;
  Cluster cluster_;
  c10::Device device_;
  dist::Communicator group_;
  std::shared_ptr<ModelRegistry> registry_;
  std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
  std::shared_ptr<Accumulation> accumulation_;   // from connect() on
  LoadersInUse loaders_;
  Saves saves_;
  Flags flags_;
  std::unique_ptr<strategy::TrainingStrategy> strategy_;
  std::shared_ptr<PreparedOptimizers> optimizers_ = std::make_shared<PreparedOptimizers>();
  std::optional<uint64_t> seed_;
  std::optional<AlikeGenerators> generators_;   // from connect() on; empty where they are alike by wish
  device::KeptMemory kept_memory_;
  std::vector<std::string> notes_;   // lines of plan() beyond the fixed ones
  const int exceptions_before_ = std::uncaught_exceptions();
  bool launched_ = false;
  cluster::Report report_;
};

}  // namespace muster::runtime
