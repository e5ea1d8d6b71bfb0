#pragma once

#include "muster/optim/scheduler.h"
#include "muster/tree/state.h"

#include <torch/optim/schedulers/lr_scheduler.h>

#include <memory>
#include <utility>
#include <variant>

namespace muster::runtime {

/// A prepared scheduler among what is saved: ours, or one of LibTorch's.
class SavedScheduler {
 public:
  /// One that keeps its state to itself: LibTorch's ReduceLROnPlateauScheduler.
  SavedScheduler() = default;
  explicit SavedScheduler(std::shared_ptr<muster::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  explicit SavedScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}

  /// It is of the last kind.
  bool sealed() const noexcept { return scheduler_.index() == 0; }
  /// Throws: CheckpointError (MU241) for one that keeps its state to itself.
  State save_state() const;
  /// Throws: UsageError (MU138), CheckpointError (MU208, MU209) if the state is none of such a scheduler; nothing is changed then.
  void load_state(const State& state) const;

 private:
  std::variant<std::monostate, std::shared_ptr<muster::LRScheduler>, std::shared_ptr<torch::optim::LRScheduler>> scheduler_;
};

}  // namespace muster::runtime
