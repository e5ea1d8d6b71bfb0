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
#include "muster/shard/tensor_shard.h"

namespace muster::parallel {

class CommHookState;
class GradientReductions;
class Joinable;
class ShardedParameters;

/// A rank's parts of the gradient of one parameter; undefined tensors for parts that it does not have.
struct GradientParts {
  at::Tensor whole = {};  ///< the full gradient; in sharded models, the sum that is not reduced over ranks yet
  at::Tensor shard = {};  ///< the shard of the reduced gradient, laid out as shards(): 1-D; sharded models only
};

/// A module managed by a strategy. ReplicatedModel and ShardedModel are the main implementations; a module in a world
/// of one has a trivial one. The last functions return capabilities that only some models have; see capabilities.h.
/// Thread safety: calls come from one thread; autograd hooks may run on another thread while backward runs.
class ManagedModel : public optim::FlatParameters {
 public:
  /// Begins or ends a forward scope of this module. Collective if parameters are gathered (ShardStage::full); otherwise
  /// a rank may run a forward alone.
  virtual void enter_forward() = 0;
  virtual void leave_forward() noexcept = 0;

  /// Called by the runtime before and after backward. after_backward() throws the errors that autograd hooks reported:
  /// a forward that bypassed the scope, a parameter that got no gradient, a failed collective. After a backward that
  /// communicates gradients, every rank has the buffers of rank 0.
  virtual void before_backward() = 0;
  virtual void after_backward() = 0;
  /// Called by the runtime instead of after_backward() if the backward has thrown. It communicates nothing, and does
  /// not wait.
  virtual void fail_backward() noexcept {}

  /// Copies the buffers of rank 0 to all ranks. Collective.
  virtual void broadcast_buffers() = 0;

  /// Off: gradients stay local and accumulate; the next backward with it on communicates the sum.
  virtual void set_gradient_sync(bool on) = 0;
  virtual bool gradient_sync() const = 0;

  /// The sum over this rank's distinct gradient elements of |g|^p (the maximum for p = infinity) of these parameters,
  /// over all ranks if they are sharded; bit-identical for every sharding (see optim::power_sum). Throws: ConfigError
  /// (MU144) unless p > 0. By default for gradients that are not sharded.
  virtual double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p);
  /// gradient_power_sum() of gradients on this device, as a 0-dim float64 tensor that stays there, with identical bits.
  /// By default the device sums gradients that are not sharded; for others the host computes gradient_power_sum().
  virtual at::Tensor device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p, at::Device device);
  /// Calls f with the gradients of these parameters where they are stored, so that f can scale or clamp them in place.
  virtual void for_each_gradient(const std::vector<at::Tensor>& parameters,
                                 const std::function<void(const at::Tensor&)>& f) = 0;
  /// Multiplies all gradients that this rank has accumulated for these parameters, including those not yet
  /// communicated.
  virtual void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
    for_each_gradient(parameters, [factor](const at::Tensor& gradient) { optim::scale_by(gradient, factor); });
  }

  /// This rank's parts of the gradient of a parameter: views where they are stored, or copies.
  virtual GradientParts gradient_parts(const at::Tensor& parameter);
  /// Replaces this rank's parts. A full gradient that is not reduced yet counts as accumulated without gradient_sync().
  virtual void load_gradient(const at::Tensor& parameter, const GradientParts& parts);

  /// Names, in the module's order, with full tensors on every rank that gets them.
  /// Collective: if parameters are sharded. `main_only`: ranks other than the main one get an empty list.
  virtual std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) = 0;

  /// This rank's parts of the sharded parameters, 1-D; tied parameters are listed under each of their names. They are
  /// written only in optim::write_parameters().
  virtual std::vector<TensorShard> shards() { return {}; }
  /// The dtype in which a parameter or buffer of the module is stored and saved, which may differ from the dtype in
  /// which it is used.
  virtual at::ScalarType stored_dtype(const at::Tensor& tensor) const { return tensor.scalar_type(); }

  /// One line for plan(): "ddp: 2 ranks, 3 buckets of at most 25 MiB, ...".
  virtual std::string describe() const = 0;

  /// nullptr if backward does not communicate gradients.
  virtual GradientReductions* gradient_reductions() noexcept { return nullptr; }
  /// nullptr if every rank holds full parameters and bit-identical gradients.
  virtual ShardedParameters* sharded_parameters() noexcept { return nullptr; }
  bool sharded() noexcept { return sharded_parameters() != nullptr; }
  /// nullptr if nothing is kept between backwards.
  virtual CommHookState* comm_hook_state() noexcept { return nullptr; }
  /// For join_uneven_inputs(); nullptr if this rank cannot take part in the others' communication without a batch.
  virtual Joinable* joinable() noexcept { return nullptr; }
};

}  // namespace muster::parallel
