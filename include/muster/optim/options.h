#pragma once

#include "muster/optim/per_group.h"

namespace muster {

enum class AveragingKind { ema, swa };

/// How weights are averaged. The default decay is that of PyTorch's get_ema_avg_fn().
struct AveragingOptions {
  double decay = 0.999;                     ///< ema: the weight of the old average in each update
  AveragingKind kind = AveragingKind::ema;  ///< exponential moving average, or the equal mean of all updates
  bool use_buffers = false;                 ///< average buffers too, instead of taking their latest values
};

/// What clipping does if the norm is infinite or NaN.
enum class NonFinite {
  error,  ///< throw
  pass,   ///< clip with that norm anyway, which spoils the gradients
  skip,   ///< clear the gradients, so that the next step updates nothing
};

/// How gradients are clipped by norm.
struct ClipNormOptions {
  NonFinite non_finite = NonFinite::pass;
  double norm_type = 2.0;
};

}  // namespace muster
