#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <torch/optim/schedulers/lr_scheduler.h>

#include "muster/checkpoint/checkpoint.h"
#include "muster/runtime/saved_item.h"
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

/// The state that a runtime keeps for its checkpoints. Thread safety: one thread at a time.
class Saves {
 public:
  using Hook = std::function<void(State&, const std::filesystem::path&)>;
  using Hooks = std::map<int64_t, Hook>;  ///< in the order of registration

  std::shared_ptr<const SavedScheduler> add(std::shared_ptr<const SavedScheduler> scheduler) {
    schedulers_.push_back(scheduler);
    return scheduler;
  }
  /// The schedulers that still have a handle.
  std::vector<std::shared_ptr<const SavedScheduler>> schedulers() {
    std::erase_if(schedulers_, [](const auto& scheduler) { return scheduler.expired(); });
    std::vector<std::shared_ptr<const SavedScheduler>> alive;
    for (const auto& scheduler : schedulers_) alive.push_back(scheduler.lock());
    return alive;
  }

  /// The implementation of Saving::wait_for_save().
  std::filesystem::path wait() { return writer ? writer->wait() : std::filesystem::path(); }

  std::vector<SavedItem> objects;
  std::shared_ptr<Hooks> before_save = std::make_shared<Hooks>(), before_load = std::make_shared<Hooks>();
  std::unique_ptr<CheckpointWriter> writer;  // writer of the last asynchronous save
  WriteCheckpointOptions writer_options;
  int64_t epochs_done = 0;  // number of completed epochs that epochs() has not skipped yet

 private:
  std::vector<std::weak_ptr<const SavedScheduler>> schedulers_;
};

}  // namespace muster::runtime
