#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace muster::optim {

/// Parameters lie in flat memory in pieces of a multiple of this many elements, so that a fused kernel updates all of
/// them by its vector body: the scalar tail of such a kernel rounds differently, and results would otherwise depend on
/// how elements are divided into calls.
inline constexpr int64_t kFlatPadding = 64;

/// The part of one parameter that this rank updates: 1-D, padded with zeros to a multiple of kFlatPadding.
/// Pieces that follow each other in memory are updated in one call.
struct FlatPiece {
  at::Tensor value;
  at::Tensor gradient;
  bool sharded = false;   ///< other ranks update other parts of the parameter
};

/// Where an optimizer finds the flat memory of parameters. One implementation per way to lay parameters out.
/// Thread safety: one thread at a time.
class FlatSource {
 public:
  virtual ~FlatSource() = default;
  /// The piece of this parameter, fixed for the life of the source; nullptr if it is not held here.
  virtual const FlatPiece* find(const at::Tensor& parameter) const = 0;
  /// Whether the piece's gradient counts in the coming step.
  virtual bool has_gradient(const at::Tensor& parameter) const = 0;
  /// Forgets the gradients of this parameter (undefined, or zero in place).
  virtual void zero_grad(const at::Tensor& parameter, bool set_to_none) = 0;
  /// Around a step: the pieces of these parameters are about to be written, and have been. The former waits for what still
  /// reads them; the latter is collective where other ranks need the values.
  virtual void begin_update() {}
  virtual void end_update(const std::vector<at::Tensor>& parameters) { static_cast<void>(parameters); }
};

/// The gate for everything but a step that writes values of parameters, in the pieces of `source`, or where parameters lie for nullptr: waits
/// for what still reads them, lets `write` write, and hands the values on, also if `write` throws. Collective where other ranks need them.
void write_parameters(FlatSource* source, const std::vector<at::Tensor>& parameters, const std::function<void()>& write);

}  // namespace muster::optim
