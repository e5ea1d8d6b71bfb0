#include "muster/parallel/detail/reducer.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "muster/base/error.h"
#include "muster/hook/detail/gradient_hooks.h"
#include "muster/parallel/comm_hook.h"
#include "parallel/agreement.h"
#include "parallel/coalesced.h"
#include "parallel/replicated/join_session.h"
#include "parallel/replicated/reduction_round.h"
#include "parallel/replicated/replica.h"
#include "parallel/synchronized_norm.h"

namespace muster::parallel {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::vector<NamedTensor> select(const std::vector<NamedTensor>& all, bool trainable) {
  std::vector<NamedTensor> some;
  for (const auto& named : all)
    if (named.tensor.requires_grad() == trainable) some.push_back(named);
  return some;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace

class Reducer::Impl final : public Joinable {
 public:
  Impl(torch::nn::Module& module, comm::Communicator group, DdpOptions options)
      : module_(module), group_(std::move(group)), options_(options), all_(distinct_parameters(module)),
        frozen_(select(all_, false)), buffers_(tensors_of(agreed_buffers())),
        replica_(select(all_, true), options.first_bucket_mb * kMiB, options.bucket_cap_mb * kMiB,
                 RoundFlags::count(all_.size() - frozen_.size())),
        round_(module.name(), replica_, group_, options_) {
    const auto& parameters = replica_.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) index_[parameters[i].tensor.unsafeGetTensorImpl()] = i;
    share_values();
    if (options_.broadcast_buffers) round_.at_end([this](int root) { buffers_.run(group_, root); });
  }

  /// Before anything is moved or sent, ranks must have built the same model.
  std::vector<NamedTensor> agreed_buffers() const {
    auto buffers = distinct_buffers(module_);
    require_equal_lines(group_, describe_tensors(all_, buffers));
    return buffers;
  }

  void share_values(int root = 0) const {
    for (const auto& values : replica_.values()) group_.as_library("values of parameters").broadcast(values, root);
    CoalescedBroadcast(tensors_of(frozen_)).run(group_, root);
    buffers_.run(group_, root);
  }

  void set_session(JoinSession* session, int64_t model) override { round_.set_session(session, model); }

  std::string obstacle() const override {
    const auto norm = first_synchronized_norm(module_);
    return norm.empty() ? norm
                        : "the batch normalization '" + norm +
                              "' takes its statistics from all ranks' batches in every forward; keep even_batches "
                              "on, or train without convert_sync_batchnorm";
  }

  void shadow(JoinEvent, int root, double divisor) override {
    shadowed_ = true;
    round_.shadow(root, divisor);
  }

  void share_values_of(int root) override {
    share_values(root);
    // Of steps that the others made, and no part of this rank's next one.
    if (std::exchange(shadowed_, false))
      for (const auto& parameter : replica_.parameters()) zero_local_gradient(parameter.tensor, /*set_to_none=*/true);
  }

  ReplicaParameter* find(const at::Tensor& parameter) {
    const auto found = index_.find(parameter.unsafeGetTensorImpl());
    return found == index_.end() ? nullptr : &replica_.parameters()[found->second];
  }

  void require_unmoved() const {
    for (const auto& parameter : replica_.parameters())
      if (parameter.tensor.const_data_ptr() != parameter.data)
        throw UsageError(
            "MU156",
            "parameter '" + parameter.name +
                "' was moved to other memory after prepare(), as by "
                "module->to(...) or torch::load(module, ...): move and convert the module before prepare(), and load "
                "weights after it with load_model(model, path)");
    for (const auto& named : frozen_)
      if (named.tensor.requires_grad())
        throw UsageError("MU156", "parameter '" + named.name +
                                      "' was frozen at prepare() and requires a gradient now, which "
                                      "would not be averaged over ranks: freeze it after prepare() instead");
  }

  void enter_forward() {
    if (depth_ == 0) require_unmoved();
    ++depth_;
  }

  void leave_forward() noexcept {
    if (depth_ > 0 && --depth_ == 0) round_.note_forward();
  }

  std::string describe() const {
    std::ostringstream text;
    text << "ddp: " << group_.size() << " ranks, " << replica_.parameters().size() << " trainable parameters";
    if (!frozen_.empty()) text << " and " << frozen_.size() << " frozen";
    text << " in " << replica_.buckets().size() << " buckets of at most " << options_.bucket_cap_mb << " MiB";
    if (options_.broadcast_buffers && !buffers_.empty()) text << ", buffers from rank 0";
    if (options_.find_unused_parameters) text << ", parameters may be unused";
    if (options_.custom_hook || options_.comm_hook != "none")
      text << ", communicated by the hook "
           << (options_.custom_hook ? options_.custom_hook->name() : options_.comm_hook);
    if (options_.static_graph) text << ", the same parameters in every step";
    return text.str();
  }

  torch::nn::Module& module_;
  comm::Communicator group_;
  DdpOptions options_;
  std::vector<NamedTensor> all_, frozen_;
  CoalescedBroadcast buffers_;
  Replica replica_;
  ReductionRound round_;
  std::unordered_map<c10::TensorImpl*, size_t> index_;
  int depth_ = 0;
  bool shadowed_ = false;  // others' gradients since the session began
};

Reducer::Reducer(torch::nn::Module& module, comm::Communicator group, DdpOptions options)
    : impl_(std::make_unique<Impl>(module, std::move(group), options)) {}
Reducer::~Reducer() = default;

const optim::LocalParameter* Reducer::find(const at::Tensor& parameter) const {
  const auto* found = impl_->find(parameter);
  return found ? &found->local : nullptr;
}

bool Reducer::has_gradient(const at::Tensor& parameter) const {
  const auto* found = impl_->find(parameter);
  if (!found) return false;
  // Through the impl, as everywhere per step: Tensor::grad() asks autograd about leaves first.
  const auto& gradient = parameter.unsafeGetTensorImpl()->grad();
  if (!gradient.defined()) return false;
  // Local gradients, or one that the user put there, are not in the bucket yet.
  if (!gradient.is_alias_of(found->gradient)) {
    at::NoGradGuard no_grad;
    found->gradient.copy_(gradient);
    parameter.mutable_grad() = found->gradient;
  }
  return true;
}

void Reducer::zero_grad(const at::Tensor& parameter, bool set_to_none) { zero_local_gradient(parameter, set_to_none); }

void Reducer::enter_forward() { impl_->enter_forward(); }
void Reducer::leave_forward() noexcept { impl_->leave_forward(); }
void Reducer::before_backward() { impl_->round_.before_backward(); }
void Reducer::after_backward() { impl_->round_.after_backward(); }
void Reducer::broadcast_buffers() {
  if (impl_->options_.broadcast_buffers) impl_->buffers_.run(impl_->group_);
}
void Reducer::set_gradient_sync(bool on) { impl_->round_.set_sync(on); }
bool Reducer::gradient_sync() const { return impl_->round_.sync(); }
void Reducer::start_round() { impl_->round_.start(); }
void Reducer::finish_round() { impl_->round_.finish_started(); }
int64_t Reducer::rounds() const { return impl_->round_.ended(); }
void Reducer::join_job(std::shared_ptr<JobRounds> job, int64_t place) { impl_->round_.join_job(std::move(job), place); }

bool Reducer::has_gradients() const {
  const auto& parameters = impl_->replica_.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& one) { return one.tensor.unsafeGetTensorImpl()->grad().defined(); });
}

double Reducer::gradient_power_sum(const std::vector<at::Tensor>& parameters, double p) {
  return local_power_sum(parameters, p);
}
void Reducer::for_each_gradient(const std::vector<at::Tensor>& parameters,
                                const std::function<void(const at::Tensor&)>& f) {
  each_local_gradient(parameters, f);
}
std::vector<std::pair<std::string, at::Tensor>> Reducer::full_state(bool main_only) {
  if (main_only && impl_->group_.rank() != 0) return {};
  return local_state(impl_->module_);
}
State Reducer::save_communication() const {
  return impl_->round_.comm_hook() ? impl_->round_.comm_hook()->save_state() : State();
}
void Reducer::load_communication(const State& state) {
  if (impl_->round_.comm_hook() && !state.empty()) impl_->round_.comm_hook()->load_state(state);
}
Joinable* Reducer::joinable() { return impl_.get(); }
std::string Reducer::describe() const { return impl_->describe(); }

}  // namespace muster::parallel
