#pragma once  // for other rooms

#include <unordered_set>

#include "hook/gradient_hooks.h"
#include "muster/parallel/managed_model.h"
#include "parallel/frozen_parameters.h"

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

  /// Always nullptr, because this class holds no flat memory.
  const optim::LocalParameter* find(const at::Tensor&) const override { return nullptr; }
  /// True for the module's parameters, which are updated where they are.
  bool expects(const at::Tensor& parameter) const override;
  bool has_gradient(const at::Tensor& parameter) const override;
  void zero_grad(const at::Tensor& parameter, bool set_to_none) override;

  void enter_forward() override;
  void leave_forward() noexcept override { graphs_.note(); }
  void before_backward() override;
  /// Throws: UsageError (MU151) if gradients came only from forwards outside of every scope.
  void after_backward() override;
  void fail_backward() noexcept override { before_.clear(); }
  void broadcast_buffers() override {}
  void set_gradient_sync(bool on) override { sync_ = on; }
  bool gradient_sync() const override { return sync_; }

  void for_each_gradient(const std::vector<at::Tensor>& parameters,
                         const std::function<void(const at::Tensor&)>& f) override;
  std::vector<std::pair<std::string, at::Tensor>> full_state(bool main_only) override;
  std::string describe() const override;

 private:
  /// A cheap fingerprint of a gradient: which tensor it is, and how often it was changed.
  struct GradientMark {
    explicit GradientMark(const at::Tensor& leaf);
    bool operator==(const GradientMark&) const = default;
    const void* impl = nullptr;
    uint32_t version = 0;
  };

  torch::nn::Module& module_;
  std::unordered_set<const c10::TensorImpl*> all_;  // the module's parameters, by impl
  std::vector<at::Tensor> leaves_;                  // parameters that are or were trainable
  FrozenParameters frozen_;
  hook::GraphUse graphs_;
  std::vector<GradientMark> before_;  // by leaf, while a backward runs that may have bypassed the scope
  bool sync_ = true;
};

}  // namespace muster::parallel
