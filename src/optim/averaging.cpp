#include "muster/optim/averaging.h"

#include <exception>
#include <unordered_set>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/modules/batchnorm.h>

#include "hook/below_autograd.h"
#include "hook/watched_storage.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "optim/flat.h"

namespace muster {
namespace {

void average_into(const at::Tensor& average, const at::Tensor& live, const AveragingOptions& options,
                  int64_t n_averaged) {
  if (options.kind == AveragingKind::ema) {
    if (average.is_floating_point()) average.lerp_(live, 1.0 - options.decay);
    else average.copy_(average * options.decay + live * (1.0 - options.decay));
  } else {
    average.copy_(average + (live - average) / static_cast<double>(n_averaged + 1));
  }
}

/// Every write to a parameter changes its version, even one by a prepared optimizer; only the swap in use() does not.
std::vector<uint32_t> versions_of(const std::vector<at::Tensor>& parameters) {
  std::vector<uint32_t> versions;
  for (const auto& parameter : parameters)
    if (!parameter.is_inference())
      versions.push_back(parameter.unsafeGetTensorImpl()->version_counter().current_version());
  return versions;
}

/// The owner of these parameters' storage, if that is not their module.
optim::FlatParameters* owner_of(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters)
    if (const auto watcher = hook::watcher_of(parameter))
      if (auto* owner = dynamic_cast<optim::ParameterOwner*>(watcher.get())) return &owner->flat_parameters();
  return nullptr;
}

template <class Norm>
void collect_norm(torch::nn::Module& module,
                  std::vector<std::pair<torch::nn::Module*, std::function<void()>>>& restore) {
  auto* norm = dynamic_cast<Norm*>(&module);
  if (!norm) return;
  norm->reset_running_stats();
  restore.emplace_back(norm, [norm, before = norm->options.momentum()] { norm->options.momentum(before); });
  norm->options.momentum(std::nullopt);
}

}  // namespace

AveragedModel::AveragedModel(torch::nn::Module& module, AveragingOptions options, optim::FlatParameters* owner)
    : options_(options), owner_(owner ? owner : owner_of(module.parameters())), finds_owner_(!owner) {
  if (!(options_.decay >= 0.0 && options_.decay <= 1.0))
    throw ConfigError(
        "MU140", formatted("the decay of an average of weights is {}; it must be between 0 and 1", options_.decay));
  std::unordered_set<c10::TensorImpl*> seen;  // a tensor's impl is its identity
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool averaged) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    entries_.push_back({name, tensor, {}, averaged});
    entries_.back().average = at::empty_like(live(entries_.back()));
  };
  at::NoGradGuard no_grad;
  for (const auto& entry : module.named_parameters()) {
    add(entry.key(), entry.value(), true);
    parameters_.push_back(entry.value());
  }
  for (const auto& entry : module.named_buffers()) add(entry.key(), entry.value(), options_.use_buffers);
}

at::Tensor AveragedModel::live(const Entry& entry) const {
  const auto* local = owner_ ? owner_->find(entry.tensor) : nullptr;
  return local ? local->value : entry.tensor.detach();
}

void AveragedModel::follow_owner() {
  if (finds_owner_) owner_ = owner_of(parameters_);
  const hook::BelowAutograd scope;
  for (auto& entry : entries_) {
    const auto now = live(entry);
    if (now.sizes() == entry.average.sizes()) continue;
    const auto flat = at::zeros_like(now);
    if (const auto* local = owner_ ? owner_->find(entry.tensor) : nullptr; n_averaged_ > 0 && local && local->sharded)
      throw UsageError("MU583",
                       formatted("an average of weights has {} updates from before its module was sharded, and "
                                 "they are not cut into shards: prepare the module before the first update()",
                                 n_averaged_));
    if (n_averaged_ > 0) flat.as_strided(entry.tensor.sizes(), entry.tensor.strides()).copy_(entry.average);
    entry.average = flat;
  }
}

void AveragedModel::require_outside(const char* call) const {
  if (exchanged_)
    throw UsageError("MU141",
                     formatted("{} was called on an average while its weights are in the module; let the function that "
                               "was given to use() return first",
                               call));
}

void AveragedModel::require_some() const {
  if (n_averaged_ == 0)
    throw UsageError("MU141", "averaged weights were to be used before the first update(); there are none yet");
}

void AveragedModel::update() {
  require_outside("update");
  if (owner_ && owner_->ranks_are_joined())
    throw UsageError(
        "MU585",
        "update() of an AveragedModel was called inside join_uneven_inputs, where ranks without a batch do "
        "not average: call it after the loop");
  follow_owner();
  const hook::BelowAutograd scope;
  for (const auto& entry : entries_) {
    if (n_averaged_ == 0 || !entry.averaged) entry.average.copy_(live(entry));
    else average_into(entry.average, live(entry).to(entry.average.scalar_type()), options_, n_averaged_);
  }
  ++n_averaged_;
}

void AveragedModel::write(const std::function<void(const Entry&)>& f) {
  optim::write_parameters(owner_, parameters_, [&] {
    const hook::BelowAutograd scope;
    for (const auto& entry : entries_) f(entry);
  });
}

void AveragedModel::exchange() {
  write([this](const Entry& entry) {
    const auto now = live(entry), kept = now.clone();
    now.copy_(entry.average);
    entry.average.copy_(kept);
  });
  exchanged_ = !exchanged_;
}

void AveragedModel::lend(const std::function<void()>& f) {
  require_outside("use");
  require_some();
  follow_owner();
  exchange();
  const auto before = versions_of(parameters_);
  std::exception_ptr error;
  try {
    f();
    if (versions_of(parameters_) != before)
      throw UsageError(
          "MU188",
          "parameters were written inside AveragedModel::use(), as by a step of an optimizer: that changed "
          "the averages, and the weights of training are as they were before use(). Let use() only "
          "evaluate, and step after it; to train on from the averages, call copy_to_module() first");
  } catch (...) {
    error = std::current_exception();
  }
  try {
    exchange();
  } catch (...) {
    if (!error) throw;  // the error that f threw says more
  }
  if (error) std::rethrow_exception(error);
}

void AveragedModel::copy_to_module() {
  require_outside("copy_to_module");
  require_some();
  follow_owner();
  write([this](const Entry& entry) { live(entry).copy_(entry.average); });
}

State AveragedModel::state_dict() const {
  require_outside("state_dict");
  State::Map state;
  for (const auto& entry : entries_) state.emplace_back(entry.name, entry.average);
  state.emplace_back("n_averaged", at::scalar_tensor(n_averaged_, at::kLong));
  return state;
}

void AveragedModel::load_state_dict(const State& state) {
  require_outside("load_state_dict");
  follow_owner();
  const auto find = [&](const std::string& name) -> const at::Tensor& {
    const auto* found = state.find(name);
    if (!found) throw UsageError("MU142", "the state of an average of weights has no entry '" + name + "'");
    return found->tensor();
  };
  for (const auto& entry : entries_)
    if (const auto& saved = find(entry.name); saved.sizes() != entry.average.sizes())
      throw UsageError(
          "MU142", formatted("the entry '{}' of an average of weights has the shape {}, the module's is {}", entry.name,
                             saved.sizes(), entry.average.sizes()));
  const auto count = find("n_averaged").item<int64_t>();
  const hook::BelowAutograd scope;
  for (const auto& entry : entries_) entry.average.copy_(find(entry.name));
  n_averaged_ = count;
}

void update_bn(torch::nn::Module& module, const std::function<void()>& forward_all) {
  std::vector<std::pair<torch::nn::Module*, std::function<void()>>> restore;
  for (const auto& part : module.modules()) {
    collect_norm<torch::nn::BatchNorm1dImpl>(*part, restore);
    collect_norm<torch::nn::BatchNorm2dImpl>(*part, restore);
    collect_norm<torch::nn::BatchNorm3dImpl>(*part, restore);
  }
  if (restore.empty()) return;
  const bool training = module.is_training();
  const auto undo = c10::make_scope_exit([&] {
    for (const auto& [norm, set] : restore) set();
    module.train(training);
  });
  module.train(true);
  at::NoGradGuard no_grad;
  forward_all();
}

}  // namespace muster
