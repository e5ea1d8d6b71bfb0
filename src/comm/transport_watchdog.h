#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace muster::comm {

/// Looks once a second at transports whose waits might have no other end, from one thread of the process.
/// Thread-safe.
class TransportWatchdog {
 public:
  /// The one of this process, which ends with the last of its owners.
  static std::shared_ptr<TransportWatchdog> of_process();

  TransportWatchdog();
  ~TransportWatchdog();
  TransportWatchdog(const TransportWatchdog&) = delete;
  TransportWatchdog& operator=(const TransportWatchdog&) = delete;

  /// `look` is called once a second; it does not throw, and calls nothing of this object.
  void add(const void* owner, std::function<void()> look);
  /// Afterwards the owner's `look` is not called, nor under way.
  void remove(const void* owner);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const void*, std::function<void()>> looks_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace muster::comm
