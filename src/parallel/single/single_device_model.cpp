#include "parallel/single_device_model.h"

#include <cstdint>
#include <unordered_set>
#include <utility>

#include "hook/gradient_hooks.h"
#include "muster/base/error.h"
#include "parallel/frozen_parameters.h"
#include "parallel/local.h"

namespace muster::parallel {
namespace {

std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> leaves;
  for (const auto& [name, tensor] : distinct_parameters(module))
    if (tensor.requires_grad()) leaves.push_back(tensor);
  return leaves;
}

/// A cheap fingerprint of a gradient: which tensor it is, and how often it was changed.
struct GradientMark {
  const void* impl = nullptr;
  uint32_t version = 0;
  explicit GradientMark(const at::Tensor& leaf) {
    const auto& gradient = leaf.unsafeGetTensorImpl()->grad();
    if (!gradient.defined()) return;
    // Accumulation either sets another tensor or adds in place, which increments the version.
    impl = gradient.unsafeGetTensorImpl();
    version = gradient.unsafeGetTensorImpl()->version_counter().current_version();
  }
  bool operator==(const GradientMark&) const = default;
};

}  // namespace

class SingleDeviceModel::Impl {
 public:
  explicit Impl(torch::nn::Module& module)
      : module_(module), leaves_(trainable(module)), frozen_(distinct_parameters(module)), graphs_(leaves_) {
    for (const auto& parameter : module.parameters()) all_.insert(parameter.unsafeGetTensorImpl());
  }

  void follow_unfrozen() {
    for (const auto& named : frozen_.take_unfrozen()) {
      leaves_.push_back(named.tensor);
      graphs_.add(named.tensor);
    }
  }

  /// Records gradients only if no graph of a scoped forward is alive: only then can this backward have bypassed the
  /// scope.
  void before_backward() {
    before_.clear();
    bool foreign = false;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (!graphs_.alive(i)) continue;
      if (graphs_.noted(i)) return;
      foreign = true;
    }
    if (foreign)
      for (const auto& leaf : leaves_) before_.emplace_back(leaf);
  }

  void after_backward() {
    if (before_.empty()) return;
    const auto before = std::exchange(before_, {});
    for (size_t i = 0; i < before.size(); ++i)
      if (GradientMark(leaves_[i]) != before[i]) refuse_bypass();
  }

  torch::nn::Module& module_;
  std::unordered_set<const c10::TensorImpl*> all_;
  std::vector<at::Tensor> leaves_;
  FrozenParameters frozen_;
  hook::GraphUse graphs_;
  std::vector<GradientMark> before_;
  bool sync_ = true;
};

SingleDeviceModel::SingleDeviceModel(torch::nn::Module& module) : impl_(std::make_unique<Impl>(module)) {}
SingleDeviceModel::~SingleDeviceModel() = default;

const optim::LocalParameter* SingleDeviceModel::find(const at::Tensor&) const { return nullptr; }
bool SingleDeviceModel::expects(const at::Tensor& parameter) const {
  return impl_->all_.contains(parameter.unsafeGetTensorImpl());
}
bool SingleDeviceModel::has_gradient(const at::Tensor& parameter) const {
  return parameter.unsafeGetTensorImpl()->grad().defined();  // Tensor::grad() asks autograd about leaves first
}
void SingleDeviceModel::zero_grad(const at::Tensor& parameter, bool set_to_none) {
  zero_local_gradient(parameter, set_to_none);
}

void SingleDeviceModel::enter_forward() { impl_->follow_unfrozen(); }
void SingleDeviceModel::leave_forward() noexcept { impl_->graphs_.note(); }
void SingleDeviceModel::before_backward() { impl_->before_backward(); }
void SingleDeviceModel::after_backward() { impl_->after_backward(); }
void SingleDeviceModel::broadcast_buffers() {}
void SingleDeviceModel::set_gradient_sync(bool on) { impl_->sync_ = on; }
bool SingleDeviceModel::gradient_sync() const { return impl_->sync_; }

double SingleDeviceModel::gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) {
  return local_power_sum(parameters, p);
}
void SingleDeviceModel::for_each_gradient(const std::vector<at::Tensor>& parameters,
                                          const std::function<void(const at::Tensor&)>& f) {
  each_local_gradient(parameters, f);
}
std::vector<std::pair<std::string, at::Tensor>> SingleDeviceModel::full_state(bool) {
  return local_state(impl_->module_);
}
std::string SingleDeviceModel::describe() const {
  return "single: one rank, " + std::to_string(impl_->leaves_.size()) + " trainable parameters where they lie";
}

}  // namespace muster::parallel
