#pragma once  // for other rooms

#include <atomic>

#include "base/mutex.h"
#include "comm/operation.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// From now on, this rank's operations in the group carry `value` in addition to their own data. No extra message is
/// sent, and ranks need not agree on the value. 0 stops it. Thread safety: any thread.
void attach_piggyback(const Communicator& group, uint64_t value);

/// The last value received from each rank, in operations that ended here while this rank carried a value itself; 0 for
/// a rank that has not sent one yet. A group of one receives nothing, nor do backends whose messages are not Muster's
/// own. Thread safety: any thread.
std::vector<uint64_t> attached_piggybacks(const Communicator& group);

/// The values that the ranks of a group attach to their operations: this rank's, and the latest that have arrived from
/// the others. Thread-safe.
class AttachedValues {
 public:
  AttachedValues(int rank, int size)
      : rank_(static_cast<std::size_t>(rank)), arrived_(static_cast<std::size_t>(size)) {}

  void set_own(uint64_t value) { own_.store(value); }
  uint64_t own() const { return own_.load(); }
  /// Takes the values that have come with a finished operation.
  void take(const Operation& operation) {
    if (operation.piggybacks.empty()) return;
    const base::Lock lock(mutex_);
    for (std::size_t peer = 0; peer < arrived_.size(); ++peer)
      if (peer == rank_ || operation.piggybacks[peer])
        arrived_[peer] = peer == rank_ ? operation.piggyback : operation.piggybacks[peer];
  }
  std::vector<uint64_t> arrived() const {
    const base::Lock lock(mutex_);
    return arrived_;
  }

 private:
  const std::size_t rank_;
  std::atomic<uint64_t> own_ = 0;
  mutable base::Mutex mutex_;
  std::vector<uint64_t> arrived_ MUSTER_GUARDED_BY(mutex_);  // by rank
};

}  // namespace muster::comm
