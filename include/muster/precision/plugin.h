#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/precision/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

/// Base class of custom precision policies, the counterpart of Lightning's Precision plugin: derive from it, and pass
/// the object as the option `mixed_precision` or `precision`. By default, parameters and inputs are cast to
/// parameter_dtype(), and bfloat16 and float16 outputs to float32. See
/// docs/decisions/0086-a-precision-policy-of-the-programs-own.md.
///
/// Requires: every function that returns a dtype, a name or a flag returns one value at all calls and on all ranks
/// (MU312).
/// Thread safety: its functions are called by the threads that prepare models and run forwards.
class PrecisionPlugin {
 public:
  virtual ~PrecisionPlugin() = default;

  /// The name for plan() and messages. It must stay valid as long as the policy, and must not be the name of a built-in
  /// precision (MU310).
  virtual std::string_view name() const = 0;
  /// The dtype of the parameters, except those that stay in float32.
  virtual at::ScalarType parameter_dtype() const = 0;
  /// The dtype in which LibTorch's autocast computes during a forward; unset: autocast stays as it is.
  virtual std::optional<at::ScalarType> autocast_dtype() const { return std::nullopt; }
  /// The dtype in which most operators compute; a device that does not support it is refused (MU145). autocast_dtype()
  /// if set, else parameter_dtype().
  virtual at::ScalarType compute_dtype() const { return autocast_dtype().value_or(parameter_dtype()); }
  /// The dtype in which gradients are summed over ranks, unless the strategy's options set one (reduce_dtype,
  /// comm_hook). Unset: the strategy's default. The constructor of the runtime throws ConfigError (MU311) if the
  /// strategy does not support it.
  virtual std::optional<at::ScalarType> reduce_dtype() const { return std::nullopt; }
  /// Whether losses are scaled, as under "16-mixed", by the options `grad_scaler`.
  virtual bool scales_losses() const { return false; }

  /// Called once for each module that is prepared, before it is moved to its device and before the strategy manages it.
  /// Casts values in place (Module::to, set_data); a parameter that is missing afterwards is an error (MU310). `fp32`:
  /// names of existing submodules that stay unchanged, with all their submodules.
  virtual void convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32);
  /// Called for each defined tensor among the inputs of a forward, of any dtype, after enter_forward(). `tensor` is a
  /// copy of the handle: assign the tensor that the module is to get. Options of the strategy that set a dtype of
  /// inputs or outputs apply to the assigned tensor.
  virtual void convert_input(at::Tensor& tensor);
  /// Called as convert_input(), for each tensor among the outputs, after leave_forward().
  virtual void convert_output(at::Tensor& tensor);
  /// Called at the beginning of each forward, before parameters are gathered, and by autocast(). If it throws,
  /// leave_forward() is not called, so it must undo its own effects. Calls nest.
  virtual void enter_forward() {}
  /// Called once for each enter_forward() that returned, in reverse order, on the same thread, also after an exception.
  virtual void leave_forward() noexcept {}
};

}  // namespace muster
