#include "device/vector_math.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

namespace muster::device {

void initialize_vector_math() {
  [[maybe_unused]] static const bool initialized = [] {
    // Only the kernel matters, and autograd is not asked.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    // One contiguous call chooses the kernels of all functions: they share the choice.
    at::sin(at::zeros({1}, at::kFloat));
    return true;
  }();
}

}  // namespace muster::device
