#pragma once

#include "muster/hook/random_scope.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace muster::data {

/// Open while a dataset's code runs: its random operators draw numbers of their own, and nothing is recorded for backward.
/// Below autograd a small operator costs a fifth less.
struct DatasetScope {
  hook::RandomScope random;
  at::AutoDispatchBelowADInplaceOrView no_gradients;
};

}  // namespace muster::data
