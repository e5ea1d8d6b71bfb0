#pragma once  // for other rooms

#include <memory>

#include "muster/parallel/managed_model.h"

namespace torch::nn {
class Module;
}

namespace muster::parallel {

/// A module in a world of one: nothing is moved, hooked or communicated. Parameters are updated in place, with the bits
/// of ReplicatedModel.
class SingleDeviceModel final : public ManagedModel {
 public:
  /// Requires: the module outlives this object.
  explicit SingleDeviceModel(torch::nn::Module& module);
  ~SingleDeviceModel() override;

  /// Always nullptr, because this class holds no flat memory.
  const optim::LocalParameter* find(const at::Tensor& parameter) const override;
  /// True for the module's parameters, which are updated where they are.
  bool expects(const at::Tensor& parameter) const override;
  bool has_gradient(const at::Tensor& parameter) const override;
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override;

  void enter_forward() override;
  void leave_forward() noexcept override;
  void before_backward() override;
  /// Throws: UsageError (MU151) if gradients came only from forwards outside of every scope.
  void after_backward() override;
  void broadcast_buffers() override;
  void set_gradient_sync(bool on) override;
  bool gradient_sync() const override;

  double gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) override;
  void for_each_gradient(const std::vector<at::Tensor>& parameters,
                         const std::function<void(const at::Tensor&)>& f) override;
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override;
  std::string describe() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::parallel
