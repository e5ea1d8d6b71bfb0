#include "parallel/replicated_model.h"

#include <algorithm>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include "comm/agreement.h"
#include "comm/shared_tensor.h"
#include "device/memory.h"
#include "muster/base/error.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/local.h"
#include "parallel/replicated/bucket_reductions.h"
#include "parallel/sync_batch_norm.h"

namespace muster::parallel {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

ReplicatedModel::ReplicatedModel(torch::nn::Module& module, comm::Communicator group, const DdpOptions& options)
    : module_(module), group_(std::move(group)), options_(options), all_(distinct_parameters(module)), frozen_(all_),
      buffers_(tensors_in(agreed_buffers())),
      replica_(trainable(all_), options.first_bucket_mb * kMiB, options.bucket_cap_mb * kMiB,
               ReductionFlags::count(all_.size() - frozen_.all().size()),
               [this](int64_t elements, const at::TensorOptions& kind) {
                 return comm::shared_zeros(group_, elements, kind, comm::PeerAccess::write);
               }),
      reducer_(module.name(), replica_, frozen_, group_, options_) {
  share_values(/*root=*/0);
  if (options_.broadcast_buffers) reducer_.at_end([this](int root) { buffers_.run(group_, root); });
  device::release_freed_memory();  // parameters that moved leave gaps that no other tensor fills
}

std::vector<NamedTensor> ReplicatedModel::agreed_buffers() const {
  auto buffers = distinct_buffers(module_);
  require_sendable(all_, buffers);
  comm::require_same_lines(group_, describe_tensors(all_, buffers));
  return buffers;
}

void ReplicatedModel::share_values(int root) const {
  for (const auto& values : replica_.values()) group_.internal("values of parameters").broadcast(values, root);
  CoalescedBroadcast(tensors_in(frozen_.all())).run(group_, root);
  buffers_.run(group_, root);
}

std::string ReplicatedModel::obstacle() const { return need_of_every_batch(module_); }

void ReplicatedModel::follow(const JoinStep& step) {
  followed_ = true;
  reducer_.follow(step);
}

void ReplicatedModel::sync_final_model(const comm::Communicator&, int root) {
  share_values(root);
  // The loop may have frozen parameters after this rank had left it.
  std::vector<int64_t> trains;
  for (const auto& [name, tensor] : all_) trains.push_back(tensor.requires_grad());
  const auto of_root = at::tensor(trains, at::kLong);
  group_.internal("which parameters train").broadcast(of_root, root);
  for (size_t i = 0; i < all_.size(); ++i) {
    const bool required = of_root.const_data_ptr<int64_t>()[i] != 0;
    if (all_[i].tensor.requires_grad() != required) all_[i].tensor.requires_grad_(required);
  }
  // These gradients come from steps of other ranks, and must not be part of this rank's next step.
  if (std::exchange(followed_, false))
    for (const auto& parameter : replica_.parameters()) zero_local_gradient(parameter.tensor, /*set_to_none=*/true);
}

std::string ReplicatedModel::describe() const {
  std::ostringstream text;
  text << "ddp: " << group_.size() << " ranks, " << replica_.parameters().size() << " trainable parameters";
  if (const auto frozen = frozen_.all().size()) text << " and " << frozen << " frozen";
  text << " in " << replica_.buckets().size() << " buckets of at most " << options_.bucket_cap_mb << " MiB";
  if (options_.broadcast_buffers && !buffers_.empty()) text << ", buffers from rank 0";
  if (options_.find_unused_parameters) text << ", parameters may be unused";
  if (options_.custom_hook || options_.comm_hook != "none")
    text << ", communicated by the hook " << (options_.custom_hook ? options_.custom_hook->name() : options_.comm_hook);
  if (options_.static_graph) text << ", the same parameters in every step";
  return text.str();
}

const optim::LocalParameter* ReplicatedModel::find(const at::Tensor& parameter) const {
  const auto* found = replica_.find(parameter);
  return found ? &found->local : nullptr;
}

bool ReplicatedModel::has_gradient(const at::Tensor& parameter) const {
  const auto* found = replica_.find(parameter);
  if (!found) return false;
  // Through the impl, as in all code that runs per step, because Tensor::grad() would first ask autograd whether it is
  // a leaf.
  const auto& gradient = parameter.unsafeGetTensorImpl()->grad();
  if (!gradient.defined()) return false;
  // Local gradients, and gradients set by the user, are not in the bucket yet.
  if (!gradient.is_alias_of(found->gradient)) {
    at::NoGradGuard no_grad;
    at::Tensor(found->gradient).copy_(gradient);
    const auto local = std::exchange(parameter.mutable_grad(), found->gradient);
    reducer_.order_local_gradients();
  }
  return true;
}

bool ReplicatedModel::expects(const at::Tensor& parameter) const {
  const auto& frozen = frozen_.all();
  return find(parameter) ||
         std::ranges::any_of(frozen, [&](const NamedTensor& named) { return named.tensor.is_same(parameter); });
}
int64_t ReplicatedModel::revision() const { return static_cast<int64_t>(replica_.parameters().size()); }
void ReplicatedModel::zero_grad(const at::Tensor& parameter, bool set_to_none) {
  zero_local_gradient(parameter, set_to_none);
}

void ReplicatedModel::enter_forward() {
  reducer_.enter_forward([this] {
    for (const auto& parameter : replica_.parameters())
      if (parameter.tensor.const_data_ptr() != parameter.data)
        throw UsageError("MU156", "parameter '" + parameter.name +
                                      "' was moved to other memory after prepare(), as by "
                                      "module->to(...) or torch::load(module, ...): move and convert the module before "
                                      "prepare(), and load weights after it with load_model(model, path)");
  });
}
void ReplicatedModel::broadcast_buffers() {
  if (options_.broadcast_buffers) buffers_.run(group_);
}

bool ReplicatedModel::has_gradients() const {
  const auto& parameters = replica_.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& one) { return one.tensor.unsafeGetTensorImpl()->grad().defined(); });
}

void ReplicatedModel::for_each_gradient(const std::vector<at::Tensor>& parameters,
                                        const std::function<void(const at::Tensor&)>& f) {
  each_local_gradient(parameters, f);
}
std::vector<std::pair<std::string, at::Tensor>> ReplicatedModel::full_state(bool main_only) {
  if (main_only && group_.rank() != 0) return {};
  return local_state(module_);
}
State ReplicatedModel::save_comm_hook_state() const {
  return reducer_.comm_hook() ? reducer_.comm_hook()->state_dict() : State();
}
void ReplicatedModel::load_comm_hook_state(const State& state) {
  if (reducer_.comm_hook() && !state.empty()) reducer_.comm_hook()->load_state_dict(state);
}

}  // namespace muster::parallel
