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

/// Within the shards first: a rank that differs there is told to its replicas, which would wait for it otherwise.
void ShardedModel::State::require_agreement() const {
  std::exception_ptr differ;
  try {
    if (groups.shards.size() > 1) frozen_.require_agreement(groups.shards);
  } catch (const ConfigError&) {
    differ = std::current_exception();
  }
  if (groups.replicas.size() > 1)
    frozen_.require_agreement(groups.replicas, differ ? "its shards: different" : "its shards: equal");
  if (differ) std::rethrow_exception(differ);
}

void ShardedModel::State::admit_unfrozen() {
  require_agreement();
  watch_unfrozen();
  std::set<size_t, std::greater<>> touched;
  for (const auto& [name, tensor] : frozen_.take_unfrozen()) {
    const auto [u, i] = *place(tensor);
    units[u]->admit(i);
    touched.insert(u);
    watched_.erase(tensor.unsafeGetTensorImpl());
  }
  reductions_->follow({touched.begin(), touched.end()});
  reductions_->wait();
}

}  // namespace muster::parallel
