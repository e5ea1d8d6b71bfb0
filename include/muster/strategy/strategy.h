#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"
#include "muster/strategy/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

/// A module managed by a strategy; a custom TrainingStrategy creates it. The shortest way is to derive from
/// DelegatingModel. A model without flat memory must return true from expects() for the module's parameters.
using ManagedModel = parallel::ManagedModel;

/// Base class of training strategies, which turn a module into a managed model. Derive from it for a custom strategy,
/// and pass the object as the option `strategy`. Immutable and thread-safe. See
/// docs/decisions/0085-parts-of-a-programs-own.md.
class TrainingStrategy {
 public:
  virtual ~TrainingStrategy() = default;
  /// The name for plan() and messages. It must stay valid as long as the strategy.
  virtual std::string_view name() const = 0;
  /// Why this strategy was chosen, for plan().
  virtual std::string reason() const { return "given by the program"; }
  /// Called once for each prepared module. The module is already on its device, its parameters have the dtype of the
  /// precision, and it outlives the result. Every rank starts from the parameters of rank 0 only if the strategy copies
  /// them. The runtime throws UsageError (MU341) for an empty result. Collective: every rank of the group, with the
  /// same module.
  virtual std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                                     const comm::Communicator& group) const = 0;
};

/// A managed model that forwards every call to another model. Derive from it and override the functions that differ.
/// Requires: the other model is not null.
class DelegatingModel : public ManagedModel {
 public:
  explicit DelegatingModel(std::shared_ptr<ManagedModel> model) : model_(std::move(model)) {}

  const optim::LocalParameter* find(const at::Tensor& parameter) const override { return model_->find(parameter); }
  bool expects(const at::Tensor& parameter) const override { return model_->expects(parameter); }
  int64_t revision() const override { return model_->revision(); }
  bool has_gradient(const at::Tensor& parameter) const override { return model_->has_gradient(parameter); }
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override { model_->zero_grad(parameter, set_to_none); }
  void begin_update() override { model_->begin_update(); }
  void end_update(const std::vector<at::Tensor>& parameters) override { model_->end_update(parameters); }
  bool abandon_update(const std::string& cause) override { return model_->abandon_update(cause); }
  void enter_forward() override { model_->enter_forward(); }
  void leave_forward() noexcept override { model_->leave_forward(); }
  void before_backward() override { model_->before_backward(); }
  void after_backward() override { model_->after_backward(); }
  void fail_backward() noexcept override { model_->fail_backward(); }
  void broadcast_buffers() override { model_->broadcast_buffers(); }
  void set_gradient_sync(bool on) override { model_->set_gradient_sync(on); }
  bool gradient_sync() const override { return model_->gradient_sync(); }
  double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) override {
    return model_->gradient_power_sum(parameters, p);
  }
  at::Tensor device_gradient_power_sum(const std::vector<at::Tensor>& parameters, double p,
                                       at::Device device) override {
    return model_->device_gradient_power_sum(parameters, p, device);
  }
  void for_each_gradient(const std::vector<at::Tensor>& parameters,
                         const std::function<void(const at::Tensor&)>& f) override {
    model_->for_each_gradient(parameters, f);
  }
  void scale_gradients(const std::vector<at::Tensor>& parameters, double factor) override {
    model_->scale_gradients(parameters, factor);
  }
  parallel::GradientParts gradient_parts(const at::Tensor& parameter) override {
    return model_->gradient_parts(parameter);
  }
  void load_gradient(const at::Tensor& parameter, const parallel::GradientParts& parts) override {
    model_->load_gradient(parameter, parts);
  }
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override {
    return model_->full_state(main_only);
  }
  std::vector<TensorShard> shards() override { return model_->shards(); }
  at::ScalarType stored_dtype(const at::Tensor& tensor) const override { return model_->stored_dtype(tensor); }
  std::string describe() const override { return model_->describe(); }
  parallel::GradientReductions* gradient_reductions() noexcept override { return model_->gradient_reductions(); }
  parallel::ShardedParameters* sharded_parameters() noexcept override { return model_->sharded_parameters(); }
  parallel::CommHookState* comm_hook_state() noexcept override { return model_->comm_hook_state(); }
  parallel::Joinable* joinable() noexcept override { return model_->joinable(); }

 private:
  std::shared_ptr<ManagedModel> model_;
};

/// Creates the strategy of this name and these options; "auto" is replicated training, or no strategy in a world of
/// one. A custom strategy is returned unchanged.
/// Throws: ConfigError (MU198) if the size of the groups that parameters are sharded over does not divide the world
/// size.
std::shared_ptr<const TrainingStrategy> make_strategy(const Strategy& strategy, int world_size, int ranks_per_node);

}  // namespace muster
