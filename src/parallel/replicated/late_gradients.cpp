#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include "parallel/replicated/reducer.h"

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kLateFreed{"ddp: memory of late gradients is freed after they were read"};

}  // namespace

/// A further gradient of a parameter in this reduction.
void Reducer::add_late_gradient(size_t i) {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;  // as in store()
  const auto& parameter = replica_.parameters()[i];
  // Autograd has put a tensor of its own there, since before_gradient() had emptied the place.
  const at::Tensor more = std::exchange(parameter.tensor.mutable_grad(), parameter.gradient);
  auto& uses = finishes_.size() <= parameter.bucket ? bucket_uses_[parameter.bucket] : late_uses_;
  uses.add(replica_.device());
  if (finishes_.size() <= parameter.bucket) {
    at::Tensor(parameter.gradient).add_(at::mul(more, scale_));
  } else if (auto& late = late_[i]; late.defined()) {
    late.add_(more);
  } else {
    late = more;
  }
}

void Reducer::average_late() {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;  // as in store()
  const auto late = std::exchange(late_, {});
  const auto& layout = replica_.layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const auto& span = layout.buckets[b];
    const auto sum = at::zeros({span.length}, replica_.buckets()[b].options());
    for (const auto i : span.items) {
      const auto found = late.find(i);
      if (found == late.end()) continue;
      const auto& like = replica_.parameters()[i].gradient;
      sum.as_strided(like.sizes(), like.strides(), layout.offsets[i] - span.begin)
          .copy_(at::mul(found->second, scale_));
    }
    in_this_step(late_label_).all_reduce(sum, comm::ReduceOp::sum);
    replica_.buckets()[b].narrow(0, 0, span.length).add_(sum);
  }
  std::exchange(late_uses_, {}).wait_for_current(kLateFreed, replica_.device());
}

}  // namespace muster::parallel
