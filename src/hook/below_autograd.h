#pragma once  // for other rooms

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace muster::hook {

/// Until the object is destroyed, operators of this thread see plain memory: nothing is recorded, versions stay, and
/// each operator is dispatched one time less.
struct BelowAutograd {
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

}  // namespace muster::hook
