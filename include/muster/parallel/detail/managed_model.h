#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/detail/flat_source.h"
#include "muster/parallel/detail/job_rounds.h"
#include "muster/parallel/sharded_options.h"
#include "muster/precision/detail/policy.h"
#include "muster/shard/detail/tensor_shard.h"
#include "muster/tree/state.h"

namespace muster::parallel {

class Joinable;

/// What this rank holds of a parameter. Tied parameters are listed under each of their names. `local` is 1-D, and
/// written only in optim::write_parameters().
struct ParameterShard : TensorShard {
  at::Tensor parameter;
  int64_t padded = 0;  ///< number of elements in the optimizer's state for this shard
};

/// A module managed by a strategy. The reducer (replicated) and the sharded model are the two implementations; a module
/// in a world of one has a third, trivial one.
/// Thread safety: calls come from one thread; autograd hooks may run on another thread while backward runs.
class ManagedModel : public optim::FlatSource {
 public:
  /// A forward scope of this module begins or ends. Collective where parameters are gathered (ShardStage::full);
  /// otherwise a rank may run a forward alone.
  virtual void enter_forward() = 0;
  virtual void leave_forward() noexcept = 0;

  /// The runtime calls them before and after backward. after_backward() throws what a hook reported: a forward that
  /// bypassed the scope, a parameter that got no gradient, a failed collective. After a backward that communicates
  /// gradients, every rank has the buffers of rank 0.
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;

  /// Buffers get the values of rank 0. Collective.
  virtual void broadcast_buffers() {}

  /// Off: gradients stay local and accumulate; the next backward with it on communicates the sum.
  virtual void set_gradient_sync(bool on) = 0;
  virtual bool gradient_sync() const = 0;

  /// Averages this rank's gradients over the ranks, as the end of a backward does: for a rank whose loss did not depend
  /// on the model while other ranks wait for it in backward. Changes nothing where no rank has a gradient, nor where
  /// every use of parameters communicates. The reductions of several models all start before any finishes, in the order
  /// of the backward that they replace.
  /// Throws: as backward. Collective, as backward: every rank calls these or runs backward.
  virtual void start_round() {}
  virtual void finish_round() {}
  /// How many such reductions have ended here, including those of backward.
  virtual int64_t rounds() const { return 0; }
  /// Some parameter has a gradient.
  virtual bool has_gradients() const { return false; }
  /// Registers the model with this index, the same on every rank, among the models of `job`. Its reductions carry index
  /// and step, so that those of models of the same layout, or of ranks in different steps, do not match each other; and
  /// they record their order.
  virtual void join_job(std::shared_ptr<JobRounds> job, int64_t place) {
    static_cast<void>(job), static_cast<void>(place);
  }

  /// The sum over this rank's distinct gradient elements of |g|^p (the maximum for p = infinity) of these parameters,
  /// over all ranks where they are sharded: bit-identical for every sharding (see optim::power_sum). Throws:
  /// ConfigError (MU144) unless p > 0.
  virtual double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) = 0;
  /// Calls f with the gradients of these parameters where they are stored, so that f can scale or clamp them in place.
  virtual void for_each_gradient(const std::vector<at::Tensor>& parameters,
                                 const std::function<void(const at::Tensor&)>& f) = 0;
  /// Multiplies all gradients that this rank has accumulated for these parameters, including those not yet
  /// communicated.
  virtual void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
    for_each_gradient(parameters, [factor](const at::Tensor& gradient) { at::Tensor(gradient).mul_(factor); });
  }
  /// Whether ranks hold different shards of the gradients. Otherwise they hold the same gradients, bit for bit.
  virtual bool sharded() const { return false; }

  /// Names, in the module's order, with full tensors on every rank that asked for them.
  /// Collective: where parameters are sharded. `main_only`: ranks other than the main one get an empty list.
  virtual std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) = 0;

  /// What this rank holds of sharded parameters; empty where they are whole.
  virtual std::vector<ParameterShard> shards() { return {}; }

  /// The dtype in which a parameter or buffer of the module is stored and saved, whatever dtype it is used in.
  virtual at::ScalarType stored_dtype(const at::Tensor& tensor) const { return tensor.scalar_type(); }
  /// How the inputs and outputs of forwards are cast.
  virtual precision::ForwardCasts forward_casts() const { return {}; }

  /// Runs f while the module has its full parameters, outside of forward and backward; where it always has them, just
  /// calls f. Collective where parameters are sharded.
  virtual void summon_full_params(const std::function<void()>& f, const FullParamsOptions& options = {}) {
    static_cast<void>(options);
    f();
  }

  /// What gradient communication keeps on this rank from one backward to the next: a communication hook's state.
  virtual State save_communication() const { return {}; }
  virtual void load_communication(const State&) {}

  /// For join_uneven_inputs(); nullptr if this rank cannot take part in the others' communication without a batch.
  virtual Joinable* joinable() { return nullptr; }

  /// One line for plan(): "ddp: 2 ranks, 3 buckets of at most 25 MiB, ...".
  virtual std::string describe() const = 0;
};

}  // namespace muster::parallel
