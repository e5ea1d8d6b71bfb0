#pragma once

#include "muster/optim/options.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

// Clipping of gradients that lie whole in grad(). A prepared model is clipped by its Accelerator or Fabric, which know where
// the strategy keeps gradients; the arithmetic is the same. A tensor that is listed twice, as LibTorch's parameters() lists tied weights, counts once.

namespace muster {

namespace optim {

/// What to do with gradients of one norm.
struct ClipDecision {
  double factor = 1.0;    ///< gradients are multiplied by this
  bool drop = false;      ///< or are forgotten, so that the coming step updates nothing
};

/// Throws: UsageError (MU143) for a norm that is infinite or not a number, with NonFinite::error.
ClipDecision decide_clip(double norm, double max_norm, NonFinite non_finite);

/// One bound for each group. Throws: ConfigError (MU135) for another number than one or `groups`.
std::vector<double> clip_bounds(const PerGroup<double>& max_norm, size_t groups);

}  // namespace optim

/// Scales the parameters' gradients so that their norm of order norm_type (any above 0, or infinity) is at most max_norm;
/// returns the norm before. Throws: ConfigError (MU144) for a norm_type that is no order; as decide_clip.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipNormOptions options = {});
/// The same for each parameter group by itself, with one max_norm or one for each; returns the norms. If one group's norm is not
/// finite, NonFinite::error and NonFinite::skip hold for all groups, so that no step is made of half of them.
std::vector<double> clip_grad_norm_(torch::optim::Optimizer& optimizer, const PerGroup<double>& max_norm, ClipNormOptions options = {});
/// Clamps every element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace muster
