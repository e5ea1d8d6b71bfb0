#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"
#include "muster/parallel/sharded_options.h"
#include "muster/precision/policy.h"
#include "muster/tree/state.h"

/// Capabilities that only some models have. For each of them ManagedModel has a function, which returns nullptr if the
/// model lacks it. Thread safety: as ManagedModel.
namespace muster::parallel {

class ReductionRecord;
class JoinSession;

/// A model whose gradients are averaged over ranks at the end of a backward.
class GradientReductions {
 public:
  /// Averages this rank's gradients over the ranks, as the end of a backward does: for a rank whose loss did not depend
  /// on the model while other ranks wait for it in backward. Does nothing if no rank has a gradient, or if parameters
  /// are gathered at each use (stage full). The reductions of several models all start before any finishes, in the
  /// order of the backward that they replace.
  /// Throws: as backward. Collective, as backward: every rank calls these or runs backward.
  virtual void start_reduction() = 0;
  virtual void finish_reduction() = 0;
  /// The number of reductions that have ended on this rank, including those of backward.
  virtual int64_t reduction_count() const = 0;
  /// Whether any parameter has a gradient.
  virtual bool has_gradients() const = 0;
  /// Registers the model in `record` under this index, which is equal on every rank. Its reductions carry index and
  /// step, so that reductions of models of equal layout, or of ranks in different steps, do not match; and they record
  /// their order.
  virtual void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) = 0;

 protected:
  ~GradientReductions() = default;
};

/// A model whose parameters or gradients are sharded over ranks.
class ShardedParameters {
 public:
  /// Names of the submodules that are units; none where the model does not say.
  virtual std::vector<std::string> unit_names() const { return {}; }
  /// How the inputs and outputs of forwards are cast.
  virtual precision::ForwardCasts forward_casts() const = 0;
  /// Runs f while the module has its full parameters; call it outside forward and backward. Collective.
  virtual void summon_full_params(const std::function<void()>& f, const FullParamsOptions& options) = 0;

 protected:
  ~ShardedParameters() = default;
};

/// A model whose gradient communication keeps state on this rank between backwards: the state of a communication hook.
class CommHookState {
 public:
  virtual State save_comm_hook_state() const = 0;
  virtual void load_comm_hook_state(const State& state) = 0;

 protected:
  ~CommHookState() = default;
};

/// What a rank inside join_uneven_inputs() does next. Each event comes before the communication that it announces.
enum class JoinEvent : int64_t {
  finished,        ///< its loop has ended
  failed,          ///< its loop threw
  gradients,       ///< a model begins to communicate gradients
  gather,          ///< a model gathers a unit; `detail` is the model's own
  reduction,       ///< a model reduces the gradients of a unit, whose index is `detail`
  reductions_end,  ///< a model waits for the reductions of its units
  program,         ///< the program uses or changes gradients; `detail` is a hash of what it does
};

/// What the ranks that have batches do next, as every rank has learned it.
struct JoinStep {
  JoinEvent event = JoinEvent::finished;
  int64_t model = -1;                         ///< index of the model among those that are joined; -1: no model
  int64_t detail = 0;                         ///< see JoinEvent
  int active = 0;                             ///< number of ranks that have batches
  int root = 0;                               ///< highest active rank
  double divisor = 1;                         ///< divisor of sums of gradients over ranks
  const comm::Communicator* group = nullptr;  ///< all ranks
  at::Tensor more = {};  ///< what the root has sent with the event, as bytes; undefined on active ranks
};

/// A model in whose communication other ranks can take part without batches.
class Joinable {
 public:
  virtual ~Joinable() = default;
  /// Makes the model announce what it communicates from now on; nullptr: stops.
  virtual void set_session(JoinSession* session, int64_t model) = 0;
  /// Takes part in the communication that the active ranks have announced. Collective.
  virtual void follow(const JoinStep& step) = 0;
  /// The session is over on this rank, or has failed: nothing of it stays.
  virtual void end_session() noexcept {}
  /// The reason why the model cannot be joined after all, as text that follows "since"; empty if it can.
  virtual std::string obstacle() const { return {}; }
  /// Copies the root's buffers, and parameters that every rank has in full, to all ranks. Collective.
  virtual void sync_final_model(const comm::Communicator& group, int root) = 0;

  /// Whether a rank without batches also makes the optimizer steps of the others, since it holds shards that they do
  /// not hold.
  virtual bool needs_steps() const { return false; }
  /// Which parameters have a reduced gradient and which require one, a character for each; equal on all active ranks.
  virtual std::string gradient_states() const { return {}; }
  /// Brings this rank to these states of the active ranks: drops reduced gradients that the program has cleared there,
  /// and freezes and unfreezes parameters. Throws: UsageError (MU118) if this rank lacks a gradient that they have.
  virtual void adopt_gradient_states(const std::string& states) { static_cast<void>(states); }
};

}  // namespace muster::parallel
