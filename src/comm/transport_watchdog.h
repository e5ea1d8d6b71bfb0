#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace muster::comm {

/// Checks once a second, in one thread of the process, transports in which a wait might never end.
/// Thread-safe.
class TransportWatchdog {
 public:
  /// The watchdog of this process, which is destroyed with its last owner.
  static std::shared_ptr<TransportWatchdog> of_process();

  TransportWatchdog();
  ~TransportWatchdog();
  TransportWatchdog(const TransportWatchdog&) = delete;
  TransportWatchdog& operator=(const TransportWatchdog&) = delete;

  /// `look` is called once a second. It does not throw, and calls nothing of this object.
  void add(const void* owner, std::function<void()> look);
  /// When this returns, the owner's `look` is not running and will not be called again.
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
