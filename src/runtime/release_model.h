#pragma once  // for other rooms

#include <torch/nn/module.h>

#include "muster/runtime/model.h"

namespace muster::runtime {

/// Empties the handle and restores the module as it was before prepare(): with full parameters, in its own dtypes where
/// sharding used others, and without gradients where they were sharded. Another runtime may then prepare it.
/// Requires: the optimizers that were prepared for the model are gone. Collective: where parameters are sharded.
/// Throws: UsageError (MU439) if another handle of the model exists; this handle then keeps it.
/// Why: docs/decisions/0118-a-module-goes-from-one-trainer-to-another.md.
void release_model(Model<torch::nn::Module>& model);

}  // namespace muster::runtime
