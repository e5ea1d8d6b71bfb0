#pragma once

#include <cstdint>

namespace muster::optim {

/// The hyperparameters of one update; weight_decay 0: none.
struct RmspropNumbers {
  double alpha;
  double eps;
  double lr;
  double momentum;
  double weight_decay;
};

/// Makes one update of `count` elements with the operations of torch::optim::RMSprop, each rounded to T, so that an
/// element's result does not depend on where it lies. `momentum_buffer` and `grad_avg` are nullptr if the update has
/// none.
template <class T>
void update_rmsprop(const RmspropNumbers& numbers, T* value, const T* gradient, T* square_avg, T* momentum_buffer,
                    T* grad_avg, int64_t count);

extern template void update_rmsprop(const RmspropNumbers&, float*, const float*, float*, float*, float*, int64_t);
extern template void update_rmsprop(const RmspropNumbers&, double*, const double*, double*, double*, double*, int64_t);

}  // namespace muster::optim
