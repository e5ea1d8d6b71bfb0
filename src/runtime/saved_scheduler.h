#pragma once

#include <memory>
#include <utility>
#include <variant>

#include <torch/optim/schedulers/lr_scheduler.h>

#include "muster/schedule/scheduler.h"
#include "muster/tree/state.h"

namespace muster::runtime {

/// A prepared scheduler in the form that checkpoints save: one of Muster's or of LibTorch's.
class SavedScheduler {
 public:
  /// Makes an entry for a scheduler whose state cannot be read: LibTorch's ReduceLROnPlateauScheduler.
  SavedScheduler() = default;
  explicit SavedScheduler(std::shared_ptr<muster::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}
  explicit SavedScheduler(std::shared_ptr<torch::optim::LRScheduler> scheduler) : scheduler_(std::move(scheduler)) {}

  /// True for a scheduler whose state cannot be read.
  bool sealed() const noexcept { return scheduler_.index() == 0; }
  /// Throws: CheckpointError (MU241) for a scheduler whose state cannot be read.
  State state_dict() const;
  /// Throws: UsageError (MU138), CheckpointError (MU208, MU209) if the state does not fit the scheduler, and then
  /// changes nothing.
  void load_state_dict(const State& state) const;

 private:
  std::variant<std::monostate, std::shared_ptr<muster::LRScheduler>, std::shared_ptr<torch::optim::LRScheduler>>
      scheduler_;
};

}  // namespace muster::runtime
