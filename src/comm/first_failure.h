#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "base/mutex.h"

namespace muster::comm {

/// The failure that has ended a group; later ones are not kept. Thread-safe. Whether there is one costs no lock.
class FirstFailure {
 public:
  struct Failure {
    std::string id;
    std::string text;
    int peer = -1;  ///< the rank that caused it; -1: unknown
    std::string message() const { return id + ": " + text; }
  };

  /// Keeps the first failure. Returns whether this is the first.
  bool keep(const Failure& failure) {
    const base::Lock lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    is_kept_.store(true, std::memory_order_release);
    return true;
  }
  bool is_kept() const noexcept { return is_kept_.load(std::memory_order_acquire); }
  /// The failure, which never changes. Requires: is_kept().
  const Failure& kept() const MUSTER_NO_THREAD_SAFETY_ANALYSIS { return *failure_; }  // nothing writes it any more

 private:
  base::Mutex mutex_;
  std::optional<Failure> failure_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<bool> is_kept_ = false;
};

}  // namespace muster::comm
