#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

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
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_ = failure;
    is_kept_.store(true, std::memory_order_release);
    return true;
  }
  bool is_kept() const noexcept { return is_kept_.load(std::memory_order_acquire); }
  /// The failure, which never changes. Requires: is_kept().
  const Failure& kept() const { return *failure_; }

 private:
  std::mutex mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> is_kept_ = false;
};

}  // namespace muster::comm
