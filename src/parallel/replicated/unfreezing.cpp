#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "parallel/replicated/reducer.h"

namespace muster::parallel {

void Reducer::attach(const NamedTensor& named, int64_t index) {
  const auto& [name, tensor] = named;
  auto locator = std::make_shared<VariableLocator>(VariableLocator{index, bypass_.add_leaf(tensor), name});
  hooks_.emplace_back(tensor, [this, locator](const at::Tensor& leaf) { on_gradient(*locator, leaf); });
  capture_hooks_.emplace_back(tensor, [locator] {
    throw UsageError("MU153", "autograd::grad with respect to parameter '" + locator->name +
                                  "' of a prepared model "
                                  "would give this rank's gradient only, unaveraged: take it from a module that is not "
                                  "prepared, or call backward and read the parameter's grad()");
  });
  // A hook on the tensor runs before accumulation, one on the accumulator after it.
  early_hooks_.emplace_back(tensor,
                            tensor.register_hook([this, locator](const at::Tensor&) { before_gradient(*locator); }));
  if (index < 0) watched_[tensor.unsafeGetTensorImpl()] = std::move(locator);
}

void Reducer::watch_unfrozen() {
  for (const auto& named : frozen_.all())
    if (named.tensor.requires_grad() && !watched_.contains(named.tensor.unsafeGetTensorImpl()))
      attach(named, /*index=*/-1);
}

/// Gradients of this reduction have accumulated where autograd put them. Other ranks are here too: each has read the
/// flags.
void Reducer::add_unfrozen() {
  at::NoGradGuard no_grad;
  frozen_.require_agreement(group_);
  watch_unfrozen();
  const auto first = states_.size(), first_bucket = replica_.buckets().size();
  auto parameters = frozen_.take_unfrozen();
  replica_.append(parameters, options_.bucket_cap_mb * kMiB, ReductionFlags::count(first + parameters.size()));
  update_buckets();
  for (size_t i = first; i < replica_.parameters().size(); ++i) {
    auto* impl = replica_.parameters()[i].tensor.unsafeGetTensorImpl();
    watched_.extract(impl).mapped()->index = static_cast<int64_t>(i);
    auto& state = states_.emplace_back();
    state.fired = impl->grad().defined();
    state.expected = !static_graph_known_ || shadow_ || outside_backward_ || state.fired;
    fill(i);
  }
  at::AutoDispatchBelowADInplaceOrView below;  // flat memory: nothing to record
  for (size_t b = first_bucket; b < replica_.buckets().size(); ++b) {
    if (b + 1 == replica_.buckets().size()) write_flags();
    in_this_step(bucket_labels_[b]).all_reduce(replica_.buckets()[b], comm::ReduceOp::sum);
  }
  if (!replica_.flags_are_apart() || replica_.buckets().size() == first_bucket) return;
  start_flags();
  flag_work_.wait();
}

/// Every rank has the same sums, so all throw.
void Reducer::refuse_different_freezing(const ReductionFlags& flags) const {
  if (const auto names = flags.frozen_on_some(replica_); !names.empty())
    throw ConfigError("MU150", "ranks have frozen different parameters: only some of them have frozen " + names +
                                   "; call requires_grad_ alike on every rank, between the same steps");
}

void Reducer::update_buckets() {
  const auto count = replica_.buckets().size();
  pending_.resize(count);
  bucket_labels_.resize(count);
  bucket_uses_.resize(count);
  if (!stream_ && !replica_.device().is_cpu()) stream_ = device::stream_from_pool(replica_.device());
  name_operations(label_);
  if (!comm_hook_) return;
  hook_buckets_ = replica_.hook_buckets();
  hook_groups_.resize(count);
}

}  // namespace muster::parallel
