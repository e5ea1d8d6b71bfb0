#pragma once  // for other rooms

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/parallel/options.h"
#include "parallel/frozen_parameters.h"
#include "parallel/module_buffers.h"
#include "parallel/replicated/reducer.h"
#include "parallel/replicated/replica.h"

namespace torch::nn {
class Module;
}

namespace muster::parallel {

/// Replicated training (DDP): every rank holds the whole model and a part of the batch; gradients are averaged during
/// backward.
///
/// Parameters move into flat memory (their handles, sizes and strides stay), and gradients become views of flat
/// buckets. Hooks copy each gradient, times 1/size, into its bucket. Buckets are laid out by the model, from the last
/// parameter to the first. As they fill, they start their all_reduce in this order, while backward continues. When
/// backward ends, every gradient is the mean over ranks of the gradients that each rank has accumulated. It is summed
/// in rank order, so the bits are equal on every rank and in every run. If a tensor returned by grad() is kept while
/// the parameter's gradient is reset, it keeps its values; a view of it does not. Then buffers (running statistics) get
/// the values of rank 0, so that evaluation gives equal results on all ranks, whenever each runs it; this does not
/// happen with broadcast_buffers off.
///
/// Tied parameters count once. Frozen parameters (requires_grad off) take no part. A parameter that is unfrozen later
/// gets gradient memory, hooks and a separate bucket in the first backward that communicates gradients after a forward.
/// The other parameters stay where they are, and their buckets are sent first. Until then find() does not know it. A
/// parameter that is frozen later counts as unused, without an error: no bucket waits for it, and zeros are sent in its
/// place. Calling backward() directly works as well. After an exception in backward the model stays usable if all ranks
/// threw at the same point.
///
/// Throws, from backward on the ranks concerned: UsageError
///   MU151 no forward of this backward ran in a forward scope,
///   MU152 a parameter got no gradient on some rank (on all ranks; unless find_unused_parameters or static_graph),
///   MU153 backward with create_graph, or autograd::grad with respect to a parameter of the model,
///   MU154 a sparse gradient,
///   MU155 with static_graph, the parameters that got gradients differ from those of the first step;
/// ConfigError
///   MU150 ranks have unfrozen different parameters.
class ReplicatedModel final : public ManagedModel, public GradientReductions, public CommHookState, private Joinable {
 public:
  /// Broadcasts parameters and buffers from rank 0. Requires: the module outlives this object.
  /// Throws: ConfigError (MU150) if ranks disagree in a name, shape, stride, dtype or requires_grad.
  /// Collective.
  ReplicatedModel(torch::nn::Module& module, comm::Communicator group, const DdpOptions& options = {});

  const optim::LocalParameter* find(const at::Tensor& parameter) const override;
  bool expects(const at::Tensor& parameter) const override;
  int64_t revision() const override;
  bool ranks_are_joined() const override { return reducer_.in_session(); }
  bool has_gradient(const at::Tensor& parameter) const override;
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override;

  /// Throws: UsageError (MU156) if a parameter was moved since set-up.
  void enter_forward() override;
  void leave_forward() noexcept override { reducer_.leave_forward(); }
  void before_backward() override { reducer_.before_backward(); }
  void after_backward() override { reducer_.after_backward(); }
  void fail_backward() noexcept override { reducer_.fail_backward(); }
  void broadcast_buffers() override;
  void set_gradient_sync(bool on) override { reducer_.set_sync(on); }
  bool gradient_sync() const override { return reducer_.sync(); }
  void start_reduction() override { reducer_.start(); }
  void finish_reduction() override { reducer_.finish_started(); }
  int64_t reduction_count() const override { return reducer_.ended(); }
  bool has_gradients() const override;
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index) override {
    reducer_.register_with(record, index);
  }

  void for_each_gradient(const std::vector<at::Tensor>& parameters,
                         const std::function<void(const at::Tensor&)>& f) override;
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override;
  State save_comm_hook_state() const override;
  void load_comm_hook_state(const State& state) override;
  GradientReductions* gradient_reductions() noexcept override { return this; }
  CommHookState* comm_hook_state() noexcept override { return this; }
  Joinable* joinable() noexcept override { return this; }
  std::string describe() const override;

 private:
  void set_session(JoinSession* session, int64_t model) override { reducer_.set_session(session, model); }
  std::string obstacle() const override;
  void follow(const JoinStep& step) override;
  void sync_final_model(const comm::Communicator& group, int root) override;

  /// Checks, before anything is moved or sent, that ranks have built equal models.
  std::vector<NamedTensor> agreed_buffers() const;
  void share_values(int root) const;

  torch::nn::Module& module_;
  comm::Communicator group_;
  DdpOptions options_;
  std::vector<NamedTensor> all_;
  FrozenParameters frozen_;
  CoalescedBroadcast buffers_;
  Replica replica_;
  Reducer reducer_;
  bool followed_ = false;  // whether grad() has gradients of other ranks since the session began
};

}  // namespace muster::parallel
