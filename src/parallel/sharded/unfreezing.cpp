#include <exception>
#include <functional>
#include <set>

#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "parallel/sharded/sharded_state.h"

namespace muster::parallel {

void ShardedModel::State::watch_unfrozen() {
  for (const auto& [name, tensor] : frozen_.all()) {
    if (!tensor.requires_grad() || !watched_.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto [u, i] = *place(tensor);
    units[u]->allocate_gradients();
    hook_up(u, i);
  }
}

/// Within the shards first: the replicas of a rank that differs there must know it, or they would wait for that rank.
void ShardedModel::State::require_agreement() const {
  std::exception_ptr differ;
  try {
    if (groups.shards.size() > 1) require_same_freezing(groups.shards, parameters_);
  } catch (const ConfigError&) {
    differ = std::current_exception();
  }
  if (groups.replicas.size() > 1)
    require_same_freezing(groups.replicas, parameters_, differ ? "its shards: different" : "its shards: equal");
  if (differ) std::rethrow_exception(differ);
}

bool ShardedModel::State::freezing_changed() const {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.requires_grad() != static_cast<bool>(agreed_trainable_[i])) return true;
  return false;
}

void ShardedModel::State::agree_on_freezing() {
  require_agreement();
  for (size_t i = 0; i < parameters_.size(); ++i) agreed_trainable_[i] = parameters_[i].tensor.requires_grad();
  watch_unfrozen();
  std::set<size_t, std::greater<>> touched;
  for (const auto& [name, tensor] : frozen_.take_unfrozen()) {
    const auto [u, i] = *place(tensor);
    units[u]->add_unfrozen(i);
    touched.insert(u);
    watched_.erase(tensor.unsafeGetTensorImpl());
  }
  reductions_->add_units({touched.begin(), touched.end()});
  reductions_->wait();
}

}  // namespace muster::parallel
