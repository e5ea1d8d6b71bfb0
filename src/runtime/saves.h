#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "muster/checkpoint/checkpoint.h"
#include "muster/runtime/saved_item.h"
#include "muster/tree/state.h"
#include "saved_scheduler.h"

namespace muster::runtime {

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
