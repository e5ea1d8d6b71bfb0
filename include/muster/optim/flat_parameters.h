#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::optim {

/// Each local parameter in flat memory is padded to a multiple of this many elements, so that a fused kernel updates
/// all of them in its vectorised loop. The scalar tail of such a kernel rounds differently, and results would otherwise
/// depend on how elements are divided into calls.
inline constexpr int64_t kFlatPadding = 64;
/// The number of elements with that padding.
constexpr int64_t padded(int64_t count) { return (count + kFlatPadding - 1) / kFlatPadding * kFlatPadding; }

/// The part of one parameter that this rank updates, comparable to DTensor.to_local(): 1-D, padded with zeros to a
/// multiple of kFlatPadding. Parts that are adjacent in memory are updated in one call.
struct LocalParameter {
  at::Tensor value;
  at::Tensor gradient;
  bool sharded = false;  ///< other ranks update other shards of the parameter
};

/// The flat memory of a model's parameters, as an optimizer sees it. One implementation per parameter layout.
/// Thread safety: one thread at a time.
class FlatParameters {
 public:
  virtual ~FlatParameters() = default;
  /// This rank's part of the parameter, fixed for the life of this object; nullptr if this rank does not hold it, or
  /// not yet.
  virtual const LocalParameter* find(const at::Tensor& parameter) const = 0;
  /// Whether this object owns the parameter. Also true for parameters that find() does not know because they are frozen
  /// or updated in place.
  virtual bool expects(const at::Tensor& parameter) const { return find(parameter) != nullptr; }
  /// Changes whenever find() knows more parameters than before.
  virtual int64_t revision() const { return 0; }
  /// Whether the next step uses the parameter's gradient.
  virtual bool has_gradient(const at::Tensor& parameter) const = 0;
  /// Clears the gradients of this parameter (undefined, or zero in place).
  virtual void zero_grad(const at::Tensor& parameter, bool set_to_none) = 0;
  /// Whether ranks that hold other parts of the parameters may not run the program now, because they have no batch.
  virtual bool ranks_are_joined() const { return false; }
  /// Called before and after a step writes the local values of these parameters. begin_update() waits for operations
  /// that still read them; if other ranks read this memory, it waits for those too and is collective. end_update() is
  /// collective if other ranks need the values.
  virtual void begin_update() {}
  virtual void end_update(const std::vector<at::Tensor>& parameters) { static_cast<void>(parameters); }
  /// Called instead of end_update() if the values could not be written. Returns false if end_update() must still be
  /// called because other ranks wait for it; true if they have been told, and the values are lost.
  virtual bool abandon_update(const std::string& cause) {
    static_cast<void>(cause);
    return false;
  }
};

/// Writes parameter values; every writer other than an optimizer step must use this function. It waits for operations
/// that still read the values, calls `write`, and makes the new values available on the other ranks, even if `write`
/// throws, unless the update is abandoned. `write` writes to the local parameters of `owner`, or to the parameters
/// themselves if `owner` is nullptr. Collective if other ranks need the values.
void write_parameters(FlatParameters* owner, const std::vector<at::Tensor>& parameters,
                      const std::function<void()>& write);

}  // namespace muster::optim
