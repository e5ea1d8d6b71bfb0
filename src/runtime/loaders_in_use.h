#pragma once

#include "muster/data/detail/loader_state.h"
#include "muster/runtime/metrics.h"
#include "runtime/accumulation.h"

namespace muster::runtime {

/// The loaders of one runtime, and the one being iterated: the innermost of nested loops.
class LoadersInUse {
 public:
  /// `place`: order of the loader in checkpoints; nullopt: checkpoints do not keep its position.
  void add(const std::shared_ptr<data::LoaderState>& loader, std::optional<int64_t> place = 0);
  /// The existing loaders that checkpoints keep, by place; loaders of one place in the order of addition.
  std::vector<std::shared_ptr<data::LoaderState>> saved() const;
  /// The number of batches of the loader being iterated; nullopt if there is none, or if it does not know.
  std::optional<int64_t> batches() const;
  /// The micro-batch of the current step.
  MicroBatch micro_batch(int world_size) const;
  std::optional<StepRows> rows() const;
  /// Loaders with their values of even_batches.
  using Evenness = std::vector<std::pair<std::shared_ptr<data::LoaderState>, std::optional<bool>>>;
  /// Sets even_batches of all loaders if `even` has a value; returns the former values.
  Evenness set_even(std::optional<bool> even) const;

 private:
  std::shared_ptr<data::LoaderState> innermost() const;
  struct Saved {
    int64_t place;
    std::weak_ptr<data::LoaderState> loader;
  };
  std::vector<std::weak_ptr<data::LoaderState>> loaders_;
  std::vector<Saved> saved_;  // loaders of checkpoints, sorted by place
};

}  // namespace muster::runtime
