#pragma once

#include <memory>
#include <string>

#include "muster/comm/communicator.h"
#include "muster/parallel/detail/managed_model.h"
#include "muster/strategy/options.h"

namespace torch::nn {
class Module;
}

namespace muster::strategy {

/// A training strategy: makes a managed model of a module. Immutable and thread-safe.
class TrainingStrategy {
 public:
  virtual ~TrainingStrategy() = default;
  virtual std::string_view name() const = 0;
  /// Why this strategy was chosen, for plan().
  virtual std::string reason() const = 0;
  /// The module must be on its device already. It must outlive the result.
  /// Collective: every rank of the group, with the same module.
  virtual std::shared_ptr<parallel::ManagedModel> manage(torch::nn::Module& module,
                                                         const comm::Communicator& group) const = 0;
};

/// Makes the strategy of this name and these options; "auto" is replicated training, or none in a world of one.
/// Throws: ConfigError (MU198) if parameters are to be sharded over groups whose size does not divide the world size.
std::unique_ptr<TrainingStrategy> make_strategy(const Strategy& strategy, int world_size, int ranks_per_node);

}  // namespace muster::strategy
