#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// The observers of a group's operations. Thread-safe. Whether there are any costs no lock.
class Observers {
 public:
  void add(Communicator::Observer observer) {
    const base::Lock lock(mutex_);
    auto all = observers_ ? std::make_shared<std::vector<Communicator::Observer>>(*observers_)
                          : std::make_shared<std::vector<Communicator::Observer>>();
    all->push_back(std::move(observer));
    observers_ = std::move(all);
    any_.store(true, std::memory_order_release);
  }
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  /// Calls the observers that there are now, without a lock. Requires: any().
  void notify(const OperationEvent& event) const {
    std::shared_ptr<const std::vector<Communicator::Observer>> all;
    {
      const base::Lock lock(mutex_);
      all = observers_;
    }
    for (const auto& observer : *all) observer(event);
  }

 private:
  std::atomic<bool> any_ = false;
  mutable base::Mutex mutex_;
  std::shared_ptr<const std::vector<Communicator::Observer>> observers_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::comm
