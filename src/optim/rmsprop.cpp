#include "optim/rmsprop.h"

#include <cmath>

namespace muster::optim {
namespace {

/// The loop for one set of features, so that its body has no branches and compiles to vector operations.
template <class T, bool kMomentum, bool kCentered>
void run(const RmspropNumbers& numbers, T* __restrict value, const T* __restrict gradient, T* __restrict square_avg,
         T* __restrict momentum_buffer, T* __restrict grad_avg, int64_t count) {
  const T alpha = static_cast<T>(numbers.alpha), rest = static_cast<T>(1 - numbers.alpha),
          eps = static_cast<T>(numbers.eps), minus_lr = static_cast<T>(-numbers.lr),
          momentum = static_cast<T>(numbers.momentum), weight_decay = static_cast<T>(numbers.weight_decay);
  const bool decays = numbers.weight_decay != 0;
  for (int64_t i = 0; i < count; ++i) {
    const T g = decays ? gradient[i] + weight_decay * value[i] : gradient[i];
    const T square = square_avg[i] * alpha + rest * g * g;
    square_avg[i] = square;
    T variance = square;
    if constexpr (kCentered) {
      const T mean = grad_avg[i] * alpha + rest * g;
      grad_avg[i] = mean;
      variance = square - mean * mean;
    }
    const T scale = std::sqrt(variance) + eps;
    if constexpr (kMomentum) {
      const T buffer = momentum_buffer[i] * momentum + g / scale;
      momentum_buffer[i] = buffer;
      value[i] += minus_lr * buffer;
    } else {
      value[i] += minus_lr * g / scale;
    }
  }
}

}  // namespace

template <class T>
void update_rmsprop(const RmspropNumbers& numbers, T* value, const T* gradient, T* square_avg, T* momentum_buffer,
                    T* grad_avg, int64_t count) {
  const auto loop = momentum_buffer ? (grad_avg ? run<T, true, true> : run<T, true, false>)
                                    : (grad_avg ? run<T, false, true> : run<T, false, false>);
  loop(numbers, value, gradient, square_avg, momentum_buffer, grad_avg, count);
}

template void update_rmsprop(const RmspropNumbers&, float*, const float*, float*, float*, float*, int64_t);
template void update_rmsprop(const RmspropNumbers&, double*, const double*, double*, double*, double*, int64_t);

}  // namespace muster::optim
