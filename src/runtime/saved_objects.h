#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include "muster/checkpoint/checkpoint.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime/saved_item.h"
#include "muster/schedule/scheduler.h"
#include "muster/tree/state.h"

namespace muster::runtime {

// Why: docs/decisions/0062-the-state-of-a-job.md.

/// Groups several loads: either all of them succeed, or undo() restores what was there before.
/// Thread safety: one thread at a time.
class AtomicLoad {
 public:
  using Function = std::function<void()>;

  /// Loads at once; `undo` restores what was there before.
  void now(const Function& load, Function undo) {
    undo_.push_back(std::move(undo));  // also if the load fails half-way
    load();
  }
  /// Defers `load` to commit(); it must not fail.
  void at_end(Function load) { at_end_.push_back(std::move(load)); }

  void commit() {
    for (const auto& load : at_end_) load();
    undo_.clear();
  }
  /// Calls the undo functions in reverse order. Ignores their exceptions: the undo of a load that failed without a
  /// change may fail as well.
  void undo() noexcept {
    for (; !undo_.empty(); undo_.pop_back()) try {
        undo_.back()();
      } catch (...) {}
  }

 private:
  std::vector<Function> undo_, at_end_;
};

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

State position_state(const data::LoaderState& loader);
data::LoaderPosition position_from(const State& state);
/// Throws: UsageError (MU114) for a position below 0.
void load_position(const std::shared_ptr<data::LoaderState>& loader, const data::LoaderPosition& position,
                   AtomicLoad& load);

}  // namespace muster::runtime
