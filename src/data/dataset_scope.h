#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "hook/random_scope.h"

namespace muster::data {

/// Active while a dataset's code runs: random operators draw from the scope's generator, and nothing is recorded for
/// backward. Below autograd a small operator costs a fifth less.
struct DatasetScope {
  hook::RandomScope random;
  at::AutoDispatchBelowADInplaceOrView no_gradients;
};

}  // namespace muster::data
