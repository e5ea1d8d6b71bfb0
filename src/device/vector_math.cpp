#include "device/vector_math.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

namespace muster::device {

void initialize_vector_math() {
  [[maybe_unused]] static const bool initialized = [] {
    // Only the kernel is called; autograd is skipped.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    // All functions share the choice of kernels, so one contiguous call makes it for all of them.
    at::sin(at::zeros({1}, at::kFloat));
    return true;
  }();
}

}  // namespace muster::device
