#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "muster/optim/grad_norm.h"
#include "muster/optim/options.h"

// Clipping of gradients that are whole in grad(). The Accelerator or Fabric clips a prepared model, since it knows
// where the strategy keeps gradients; the arithmetic is the same. A tensor that is listed twice counts once: LibTorch's
// parameters() lists tied weights twice.

namespace muster {

namespace optim {

/// What to do with gradients of one norm.
struct ClipDecision {
  double factor = 1.0;  ///< gradients are multiplied by this factor
  bool drop = false;    ///< or are cleared, so that the next step updates nothing
};

/// Throws: UsageError (MU143) for a norm that is infinite or not a number, with NonFinite::error.
ClipDecision decide_clip(double norm, double max_norm, NonFinite non_finite);

/// One bound for each group. Throws: ConfigError (MU135) unless there is one value or `groups` values.
std::vector<double> clip_bounds(const PerGroup<double>& max_norm, size_t groups);

}  // namespace optim

/// Scales the parameters' gradients so that their norm of order norm_type (any above 0, or infinity) is at most
/// max_norm; returns the norm before clipping. On a device nothing waits for the norm but who looks at it; with
/// NonFinite::error and NonFinite::skip the host waits for it here.
/// Throws: ConfigError (MU144) for a norm_type that is no order; as decide_clip.
GradNorm clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipNormOptions options = {});
/// The same for each parameter group separately, with one max_norm or one for each; returns the norms. If one group's
/// norm is not finite, NonFinite::error and NonFinite::skip apply to all groups, so that no step updates only some of
/// them.
GradNorms clip_grad_norm_(torch::optim::Optimizer& optimizer, const PerGroup<double>& max_norm,
                          ClipNormOptions options = {});
/// Clamps every element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace muster
