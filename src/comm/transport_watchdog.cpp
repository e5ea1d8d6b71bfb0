#include "comm/transport_watchdog.h"

#include <signal.h>

#include <chrono>
#include <utility>

namespace muster::comm {

std::shared_ptr<TransportWatchdog> TransportWatchdog::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<TransportWatchdog> last;
  std::lock_guard lock(mutex);
  auto watch = last.lock();
  if (!watch) last = watch = std::make_shared<TransportWatchdog>();
  return watch;
}

TransportWatchdog::TransportWatchdog() : thread_([this] { run(); }) {}

TransportWatchdog::~TransportWatchdog() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TransportWatchdog::add(const void* owner, std::function<void()> look) {
  std::lock_guard lock(mutex_);
  looks_[owner] = std::move(look);
}

void TransportWatchdog::remove(const void* owner) {
  std::lock_guard lock(mutex_);
  looks_.erase(owner);
}

void TransportWatchdog::run() {
  // Signals are for the program's threads. Blocked SIGPIPE also keeps a socket whose peer has died from ending the
  // process.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return ends_; }))
    for (const auto& [owner, look] : looks_) look();
}

}  // namespace muster::comm
