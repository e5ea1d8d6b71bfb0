#pragma once

#include "muster/optim/per_group.h"

namespace muster {

enum class AveragingKind { ema, swa };

/// How weights are averaged.
struct AveragingOptions {
  double decay = 0.999;                     ///< ema: the weight of the old average in each update
  AveragingKind kind = AveragingKind::ema;  ///< exponential moving average, or the equal mean of all updates
  bool use_buffers = false;                 ///< average buffers too, instead of taking their latest values
};

/// What clipping does if the norm is infinite or NaN.
enum class NonFinite {
  error,  ///< throw
  pass,   ///< clip anyway, which spreads it
  skip,   ///< clear the gradients, so that the next step updates nothing
};

/// How gradients are clipped by norm.
struct ClipNormOptions {
  NonFinite non_finite = NonFinite::pass;
  double norm_type = 2.0;
};

}  // namespace muster
