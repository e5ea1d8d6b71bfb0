#include "grad_norm.h"

#include <utility>

#include "muster/base/error.h"
#include "runtime_state.h"

namespace muster::runtime {

std::function<GradNorm()> grad_norm_of(const torch::nn::Module& module, std::weak_ptr<RuntimeState> state) {
  return [&module, state = std::move(state)] {
    const auto owner = state.lock();
    if (!owner)
      throw UsageError(
          "MU324",
          "grad_norm() of a prepared model was called after the Accelerator or Fabric that prepared it was "
          "destroyed; keep that object as long as the model trains");
    return owner->gradient_processing().grad_norm(module.parameters());
  };
}

}  // namespace muster::runtime
