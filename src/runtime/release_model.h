#pragma once  // for other rooms

#include <torch/nn/module.h>

#include "muster/runtime/model.h"

namespace muster::runtime {

/// Empties the handle; the module is as before prepare(): it has its full parameters, in its own dtypes where sharding
/// used others, without gradients where they were sharded. Another runtime may then prepare it.
/// Requires: the optimizers that were prepared for the model are gone. Collective: where parameters are sharded.
/// Throws: UsageError (MU439) if another handle of the model exists; the model is gone from this one.
void release_model(Model<torch::nn::Module>& model);

}  // namespace muster::runtime
