#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/detail/norm.h"
#include "muster/optim/flat_parameters.h"

namespace muster::parallel {

class CommHookState;
class GradientReductions;
class Joinable;
class ShardedParameters;

/// What a rank has of the gradient of one parameter; undefined tensors where it has nothing.
struct GradientParts {
  at::Tensor whole = {};  ///< of sharded models, the sum that the ranks have not reduced yet
  at::Tensor shard =
      {};  ///< 1-D, of sharded models only: of the reduced gradient, as ParameterShard is of the parameter
};

/// A module managed by a strategy. ReplicatedModel and ShardedModel are the two implementations; a module
/// in a world of one has a third, trivial one. Every model implements the pure virtual functions. The functions at the
/// end return the capabilities that only some models have; see capabilities.h.
/// Thread safety: calls come from one thread; autograd hooks may run on another thread while backward runs.
class ManagedModel : public optim::FlatParameters {
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
  virtual void broadcast_buffers() = 0;

  /// Off: gradients stay local and accumulate; the next backward with it on communicates the sum.
  virtual void set_gradient_sync(bool on) = 0;
  virtual bool gradient_sync() const = 0;

  /// The sum over this rank's distinct gradient elements of |g|^p (the maximum for p = infinity) of these parameters,
  /// over all ranks where they are sharded: bit-identical for every sharding (see optim::power_sum). Throws:
  /// ConfigError (MU144) unless p > 0.
  virtual double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) = 0;
  /// The same for gradients on this device, where the sum stays: a float64 without dimensions, with the same bits.
  /// By default gradients that are whole are summed there, and of others the host reads gradient_power_sum().
  virtual at::Tensor device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p, at::Device device);
  /// Calls f with the gradients of these parameters where they are stored, so that f can scale or clamp them in place.
  virtual void for_each_gradient(const std::vector<at::Tensor>& parameters,
                                 const std::function<void(const at::Tensor&)>& f) = 0;
  /// Multiplies all gradients that this rank has accumulated for these parameters, including those not yet
  /// communicated.
  virtual void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
    for_each_gradient(parameters, [factor](const at::Tensor& gradient) { optim::scale_by(gradient, factor); });
  }

  /// This rank's parts of the gradient of a parameter, where they are stored or copied.
  virtual GradientParts gradient_parts(const at::Tensor& parameter);
  /// Replaces them. A whole gradient that is not reduced yet counts as one of a backward without gradient_sync().
  virtual void load_gradient(const at::Tensor& parameter, const GradientParts& parts);

  /// Names, in the module's order, with full tensors on every rank that asked for them.
  /// Collective: where parameters are sharded. `main_only`: ranks other than the main one get an empty list.
  virtual std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) = 0;

  /// One line for plan(): "ddp: 2 ranks, 3 buckets of at most 25 MiB, ...".
  virtual std::string describe() const = 0;

  /// nullptr where a backward communicates no gradients.
  virtual GradientReductions* gradient_reductions() noexcept { return nullptr; }
  /// nullptr where every rank holds full parameters and the same gradients, bit for bit.
  virtual ShardedParameters* sharded_parameters() noexcept { return nullptr; }
  bool sharded() noexcept { return sharded_parameters() != nullptr; }
  /// nullptr where nothing is kept between backwards.
  virtual CommHookState* comm_hook_state() noexcept { return nullptr; }
  /// For join_uneven_inputs(); nullptr if this rank cannot take part in the others' communication without a batch.
  virtual Joinable* joinable() noexcept { return nullptr; }
};

}  // namespace muster::parallel
