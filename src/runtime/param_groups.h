#pragma once

#include <torch/optim/optimizer.h>

#include "model_registry.h"
#include "muster/comm/communicator.h"
#include "muster/tree/state.h"

/// Parameter groups of a prepared optimizer, described by parameter names.
namespace muster::runtime {

/// "2 parameters ('head.weight', 'head.bias')": at most ten names; a tensor that no prepared model has is described by
/// its shape.
std::string describe_parameters(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters);

/// The names of all parameters, for a comparison between ranks.
std::string all_parameters(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters);

/// Throws: UsageError (MU332) for a tensor that is not a leaf, for a parameter that is given twice or that the
/// optimizer already has, and for an optimizer that takes only one group;
/// (MU333) for options of another class than the optimizer's.
void require_addable(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerParamGroup& group,
                     const ModelRegistry& registry);

/// Throws: ConfigError (MU150) on every rank if `all` differs between ranks; the message quotes `shown`. Collective.
void require_equal_groups(const comm::Communicator& group, const std::string& all, const std::string& shown);

/// Throws: ConfigError (MU150) on every rank if ranks prepare an optimizer with other groups or options, naming the
/// first that differs and both values. Collective.
void require_equal_options(const comm::Communicator& group, torch::optim::Optimizer& optimizer);

/// Throws: CheckpointError (MU331) if the saved state has more or fewer groups than the optimizer, or a group has more
/// or fewer parameters.
void require_saved_groups(const State& saved, torch::optim::Optimizer& optimizer, const ModelRegistry& registry);

}  // namespace muster::runtime
