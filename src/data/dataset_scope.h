#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "hook/random_scope.h"

namespace muster::data {

/// Active while a dataset's code runs: random operators draw from the scope's generator, and nothing is recorded for
/// backward. Running below autograd makes a small operator a fifth cheaper.
/// Why: docs/decisions/0031-random-operators-in-datasets.md.
struct DatasetScope {
  hook::RandomScope random;
  at::AutoDispatchBelowADInplaceOrView no_gradients;
};

}  // namespace muster::data
