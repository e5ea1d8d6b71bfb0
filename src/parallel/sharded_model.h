#pragma once  // for other rooms

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/sharded_options.h"

namespace torch::nn {
class Module;
}

namespace muster::parallel {

class ShardedEngine;

/// A module whose training is sharded over the ranks, unit by unit (see wrap.h and ShardedOptions::auto_wrap), as
/// ShardStage says.
///
/// Each rank updates one shard of every unit. The module, its parameters and the user's handles stay the same objects,
/// with the same names, sizes and versions; only their memory is allocated and freed.
///
/// Stage full: each rank keeps its shard. The first operator of a forward or backward that accesses a freed unit
/// gathers it. The units that followed it last time are prefetched, as many as limit_gathered_mb allows, or one. A unit
/// is freed when another unit is accessed, except an enclosing unit while units within its module run; when its last
/// gradient has arrived; and at the end of the forward, except the root, which stays for backward. With
/// reshard_after_forward off it is freed only when its gradients have arrived.
/// Stages optimizer and gradients: full parameters stay in memory, and a shard is a view of them. The other ranks'
/// shards are gathered after the optimizer step, while the program continues; the first access waits for them.
///
/// When a unit's last gradient has arrived, the gradients, scaled by 1/size, are summed in rank order while backward
/// continues (stage full at once, the others in the order of the units), and each rank keeps the sum for its shard. A
/// reduction carries one flag per parameter in addition to the gradients. In stage optimizer full gradients keep their
/// memory.
///
/// Elements sent per step, if a rank has P elements in units, R of them in the root, all times (size-1)/size: optimizer
/// and gradients P gathered, P reduced; full 2P - R gathered and P reduced, or P and P without reshard_after_forward.
/// For k micro-batches with gradient_sync() off in k-1 of them, full gathers k times as much and reduces once.
///
/// Shards are whole blocks of optim::kFlatPadding elements. The local shard of a parameter (FlatParameters) is
/// therefore any range of such blocks of its memory, or empty: then value and gradient have no elements. An optimizer
/// that steps such shards has state of their shape.
///
/// If any rank has a gradient for a parameter, all ranks get the reduced one; if none has, it has no gradient. When
/// gradients have been reduced, buffers (running statistics) get the values of rank 0.
/// Without gradient_sync() full gradients stay on each rank and accumulate; this costs as much memory as the
/// parameters. They accumulate in the dtype of the reduction, and the sum is scaled.
/// After backward, grad() of a parameter is a placeholder that throws UsageError (MU167) when it is read, so that a
/// step through the user's own optimizer handle does not silently do nothing. Resetting it (net->zero_grad(), on every
/// rank) clears the gradient. A step, a norm or the next backward throws UsageError if grad() is another tensor
/// (MU578); a step or a norm also throws if gradients of backwards without gradient_sync() have not been reduced since
/// (MU579).
///
/// Accessing a parameter in stage full outside enter_forward()..leave_forward(), backward and summon_full_params()
/// throws UsageError (MU161) with the names of parameter and unit; writing one throws at any time (MU162). A backward
/// that is not surrounded by before_backward() and after_backward() works as well. Gradients with a graph
/// (create_graph) and autograd::grad with respect to parameters are refused (MU153), and so are sparse gradients
/// (MU154). After a backward that threw, clear the gradients.
///
/// Why: docs/decisions/0070-one-engine-for-all-stages.md.
class ShardedModel final : public ManagedModel, public GradientReductions, public ShardedParameters, private Joinable {
 public:
  /// Takes the values of rank 0 and shards them. Buffers take rank 0's values, too.
  /// Requires: the module is on its device and outlives this object.
  /// Collective: every rank of the group, with the same module.
  /// Throws: UsageError (MU160) if parameters cannot be watched; ConfigError (MU150), on all ranks, if the ranks'
  /// modules differ.
  ShardedModel(torch::nn::Module& module, comm::Communicator group, const ShardedOptions& options = {});
  /// Parameters are sharded over `shards`, and each shard is replicated over all ranks of `replicas` (hybrid sharding).
  /// Gradients are reduced over the shards first; then each shard's gradients are reduced over the replicas. They are
  /// divided by the product of both sizes.
  /// Requires: the ranks of each `replicas` group have the same rank in their `shards` groups.
  ShardedModel(torch::nn::Module& module, comm::Communicator shards, comm::Communicator replicas,
               const ShardedOptions& options);
  /// The module's parameters lose their values; accessing them then throws UsageError (MU166).
  ~ShardedModel() override;

  /// Throws: UsageError (MU163) if a parameter was moved from its memory (Module::to, set_data), (MU169) inside
  /// summon_full_params(). A parameter that was unfrozen gets gradients and hooks; the next backward that communicates
  /// gradients throws ConfigError (MU150) on every rank if ranks have unfrozen different parameters. In stage full the
  /// forward is collective: each gather carries whether it is for training or evaluation, and the first gather that
  /// does not match on all ranks throws CommError (MU050) on all of them. In the other stages a rank may run a forward
  /// alone.
  void enter_forward() override;
  void leave_forward() noexcept override;
  void before_backward() override;
  /// Throws: UsageError (MU151) if full parameters stay in memory and no gradient came from a forward between
  /// enter_forward() and leave_forward(). Collective: every rank, if any parameter got a gradient.
  void after_backward() override;
  void fail_backward() noexcept override;
  void broadcast_buffers() override;

  void set_gradient_sync(bool on) override;
  bool gradient_sync() const override;
  void start_reduction() override;
  void finish_reduction() override;
  int64_t reduction_count() const override;
  bool has_gradients() const override;
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) override;

  /// Collective.
  double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) override;
  at::Tensor device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p, at::Device device) override;
  void for_each_gradient(const std::vector<at::Tensor>& parameters,
                         const std::function<void(const at::Tensor&)>& f) override;
  void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) override;
  GradientParts gradient_parts(const at::Tensor& parameter) override;
  void load_gradient(const at::Tensor& parameter, const GradientParts& parts) override;
  GradientReductions* gradient_reductions() noexcept override { return this; }
  ShardedParameters* sharded_parameters() noexcept override { return this; }
  Joinable* joinable() noexcept override { return this; }

  /// Collective. Gathers unit by unit, so that at most one gathered unit is in memory besides the result.
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override;
  std::vector<TensorShard> shards() override;
  at::ScalarType stored_dtype(const at::Tensor& tensor) const override;
  std::vector<std::string> unit_names() const override;
  precision::ForwardCasts forward_casts() const override;
  /// Throws: UsageError (MU169) inside a forward, backward or another such scope; (MU190) from an operator that writes
  /// a parameter without writeback; (MU191) on the other ranks, with nothing written, if f failed on one.
  /// Collective.
  void summon_full_params(const std::function<void()>& f, const FullParamsOptions& options = {}) override;
  std::string describe() const override;

  const optim::LocalParameter* find(const at::Tensor& parameter) const override;
  bool has_gradient(const at::Tensor& parameter) const override;
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override;
  bool ranks_are_joined() const override;
  void begin_update() override;
  bool abandon_update(const std::string& cause) override;
  /// Collective.
  void end_update(const std::vector<at::Tensor>& parameters) override;

  /// What sharding has cost on this rank so far, in bytes and counts.
  struct Stats {
    int64_t gathered_bytes = 0;  ///< full parameters that are in memory now or being gathered
    int64_t peak_gathered_bytes = 0;
    int64_t gathers = 0;
    int64_t reductions = 0;
    int64_t held_bytes = 0;       ///< memory allocated permanently: shards, gradients, and what the stage keeps whole
    int64_t gradient_bytes = 0;   ///< share of the gradients in `held_bytes`
    int64_t temporary_bytes = 0;  ///< memory allocated temporarily now: full parameters, and gradients being reduced
    int64_t peak_temporary_bytes = 0;
    std::vector<std::string> units;  ///< names of the units, the root first
  };
  Stats stats() const;

 private:
  void set_session(JoinSession* session, int64_t model) override;
  void follow(const JoinStep& step) override;
  std::string obstacle() const override;
  void end_session() noexcept override;
  void sync_final_model(const comm::Communicator& group, int root) override;
  bool needs_steps() const override { return true; }
  std::string gradient_states() const override;
  void adopt_gradient_states(const std::string& states) override;

  std::shared_ptr<ShardedEngine> engine_;
};

}  // namespace muster::parallel
