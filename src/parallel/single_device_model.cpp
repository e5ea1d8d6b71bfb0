#include "parallel/single_device_model.h"

#include "muster/base/error.h"
#include "parallel/local.h"

namespace muster::parallel {

SingleDeviceModel::GradientMark::GradientMark(const at::Tensor& leaf) {
  const auto& gradient = leaf.unsafeGetTensorImpl()->grad();
  if (!gradient.defined()) return;
  // Accumulation either sets another tensor or adds in place, which increments the version.
  impl = gradient.unsafeGetTensorImpl();
  version = gradient.unsafeGetTensorImpl()->version_counter().current_version();
}

SingleDeviceModel::SingleDeviceModel(torch::nn::Module& module)
    : module_(module), leaves_(tensors_in(trainable(distinct_parameters(module)))),
      frozen_(distinct_parameters(module)), graphs_(leaves_) {
  for (const auto& parameter : module.parameters()) all_.insert(parameter.unsafeGetTensorImpl());
}

bool SingleDeviceModel::expects(const at::Tensor& parameter) const {
  return all_.contains(parameter.unsafeGetTensorImpl());
}
bool SingleDeviceModel::has_gradient(const at::Tensor& parameter) const {
  return parameter.unsafeGetTensorImpl()->grad().defined();  // Tensor::grad() asks autograd about leaves first
}
void SingleDeviceModel::zero_grad(const at::Tensor& parameter, bool set_to_none) {
  zero_local_gradient(parameter, set_to_none);
}

void SingleDeviceModel::enter_forward() {
  for (const auto& named : frozen_.take_unfrozen()) {
    leaves_.push_back(named.tensor);
    graphs_.add(named.tensor);
  }
}

/// Records gradients only if no graph of a scoped forward is alive: only then can this backward have bypassed the
/// scope.
void SingleDeviceModel::before_backward() {
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

void SingleDeviceModel::after_backward() {
  if (before_.empty()) return;
  const auto before = std::exchange(before_, {});
  for (size_t i = 0; i < before.size(); ++i)
    if (GradientMark(leaves_[i]) != before[i]) refuse_bypass();
}

void SingleDeviceModel::for_each_gradient(const std::vector<at::Tensor>& parameters,
                                          const std::function<void(const at::Tensor&)>& f) {
  each_local_gradient(parameters, f);
}
std::vector<std::pair<std::string, at::Tensor>> SingleDeviceModel::full_state(bool) { return local_state(module_); }
std::string SingleDeviceModel::describe() const {
  return "single: one rank, " + std::to_string(leaves_.size()) + " trainable parameters where they lie";
}

}  // namespace muster::parallel
