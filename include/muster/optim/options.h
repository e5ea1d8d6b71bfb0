#pragma once

#include <concepts>
#include <initializer_list>
#include <utility>
#include <vector>

namespace muster {

/// One value for all parameter groups of an optimizer, or one for each: 0.1, or {0.1, 0.01}.
template <class T>
class PerGroup {
 public:
  PerGroup() = default;
  template <class U>
    requires std::convertible_to<U, T>
  PerGroup(U&& one) : values_{T(std::forward<U>(one))} {}
  PerGroup(std::initializer_list<T> each) : values_(each) {}
  PerGroup(std::vector<T> each) : values_(std::move(each)) {}
  const std::vector<T>& values() const noexcept { return values_; }

 private:
  std::vector<T> values_;
};

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
