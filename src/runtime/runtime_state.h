#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "accumulation.h"
#include "base/signals.h"
#include "cluster/report.h"
#include "comm/custom_backend.h"
#include "job_state.h"
#include "loaders_in_use.h"
#include "main_output.h"
#include "model_registry.h"
#include "muster/comm/communicator.h"
#include "muster/data/loader.h"
#include "muster/runtime/callback.h"
#include "muster/runtime/metrics.h"
#include "muster/runtime/optimizer.h"
#include "muster/runtime/options.h"
#include "muster/schedule/scheduler.h"
#include "muster/strategy/strategy.h"
#include "muster/track/trace.h"
#include "prepared_optimizer.h"
#include "rank_placement.h"
#include "rank_votes.h"
#include "runtime/gradients.h"
#include "runtime/random_state.h"
#include "runtime/saved_objects.h"

namespace muster::runtime {

/// What the handles of schedulers share with their runtime.
struct SchedulerContext {
  /// The number of steps that schedules make in the loop.
  struct LoopSteps {
    int64_t epochs = 0, in_epoch = 0;
  };

  std::shared_ptr<PreparedOptimizers> optimizers;
  std::shared_ptr<Accumulation> accumulation;
  comm::Communicator group;
  bool with_optimizer;  ///< whether a step of the optimizer also steps the scheduler
  Saves& saves;
  std::function<std::optional<LoopSteps>()> loop_steps;  ///< nullopt: unknown
};

/// The state that a Runtime owns (AcceleratorState in Accelerate).
class RuntimeState : public std::enable_shared_from_this<RuntimeState> {
 public:
  explicit RuntimeState(const RuntimeOptions& options);
  /// Makes this process a rank of the job, with all that is prepared from then on; does nothing if it is one.
  /// Collective.
  void launch();
  std::shared_ptr<PreparedModel> prepare_model(const std::shared_ptr<torch::nn::Module>& module, bool moves);
  /// The prepared model of a module; nullptr if it was not prepared.
  std::shared_ptr<PreparedModel> prepared(const torch::nn::Module& module) const { return registry_->find(module); }
  Optimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  /// Adds to an out-of-memory error which tensors hold the device's memory. Requires: a call in its catch block.
  void add_error_context(c10::Error& error) const;
  /// Throws: UsageError (MU172) before launch().
  SchedulerContext scheduler_context();
  /// How the samples of a loader are split over ranks. Collective.
  data::SampleSplit split_of(const data::LoaderState& loader);
  /// The loader over this rank's part. `place`: as in PrepareLoaderOptions. Collective.
  std::shared_ptr<data::LoaderState> distribute(const data::LoaderState& loader, const data::SampleSplit& split,
                                                std::optional<int64_t> place);
  /// Begins the next micro-batch of the loader in use.
  std::shared_ptr<Accumulation> next_micro_batch();
  /// Runs `f` with uneven inputs of these models, or of all prepared ones if the list is empty.
  void join_uneven_inputs(std::vector<std::shared_ptr<parallel::ManagedModel>> models, const std::function<void()>& f,
                          const UnevenInputsOptions& options);
  std::string plan() const;
  void set_seed(uint64_t seed, bool per_rank);

  RankPlacement& placement() noexcept { return placement_; }
  const RankPlacement& placement() const noexcept { return placement_; }
  const Precision& precision() const noexcept { return options_.precision; }
  const std::shared_ptr<Accumulation>& accumulation() const;
  /// Throws: UsageError (MU172) before launch().
  GradientProcessing& gradient_processing();
  RankVotes& votes() noexcept { return *votes_; }
  /// The stream of the main rank; `print` of the first call prints its lines.
  std::ostream& out(void (*print)(const std::string&));
  const std::shared_ptr<Trace>& trace() const noexcept { return trace_; }
  const std::vector<std::shared_ptr<FabricCallback>>& callbacks() const noexcept { return options_.callbacks; }
  /// Sets the group of everything that is prepared from now on. It must have the same ranks.
  void use_group(const comm::Communicator& group);
  /// Called after handles were emptied.
  void forget_freed();
  Saves& saves() noexcept { return saves_; }
  const ProjectOptions& project() const noexcept { return options_.project; }
  /// Everything that was prepared or registered and still exists.
  StatefulObjects stateful_objects();
  /// Makes epochs() continue at the epoch of the first loader, which was just loaded.
  void note_loaded_epoch();
  /// Notes the number of epochs of the training that begins.
  void note_epochs(int64_t count) { epochs_ = count; }
  std::optional<StepRows> step_rows() const { return loaders_.rows(); }

 private:
  /// A function that calls add_error_context(), as long as this object lives.
  std::function<void(c10::Error&)> error_context();
  /// Called after an optimizer step; warns once if all ranks draw the same random numbers.
  void watch_generators();
  bool scales_losses() const;
  /// Known if the program has given the number of epochs, and the loader its number of batches.
  std::optional<SchedulerContext::LoopSteps> loop_steps() const;
  /// Gives optimizers, loss scales and schedulers on all ranks the states of rank `rank`.
  void broadcast_training_states(int rank);

  RuntimeOptions options_;
  RankPlacement placement_;
  std::shared_ptr<ModelRegistry> registry_;
  std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();
  std::shared_ptr<Accumulation> accumulation_;  // set from launch() on
  std::shared_ptr<JoinedSteps> joined_;         // set from launch() on
  LoadersInUse loaders_;
  Saves saves_;
  std::optional<int64_t> epochs_;  // number of epochs of training, once epochs() was called
  std::shared_ptr<RankVotes> votes_ = std::make_shared<RankVotes>();
  std::unique_ptr<MainOutput> output_;  // set from out() on
  std::shared_ptr<const TrainingStrategy> strategy_;
  std::shared_ptr<PreparedOptimizers> optimizers_ = std::make_shared<PreparedOptimizers>();
  std::optional<GradientProcessing> gradient_processing_;  // set from launch() on
  std::optional<uint64_t> seed_;
  std::optional<GeneratorCheck> generators_;  // set from launch() on; empty if generators are synchronised on purpose
  HostTuning host_tuning_;
  std::vector<std::string> notes_;  // lines of plan() in addition to the fixed ones
};

}  // namespace muster::runtime
