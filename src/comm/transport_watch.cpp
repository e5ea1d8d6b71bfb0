#include "comm/transport_watch.h"

#include <signal.h>

#include <chrono>
#include <utility>

namespace muster::comm {

std::shared_ptr<TransportWatch> TransportWatch::of_process() {
  static std::mutex mutex;
  static std::weak_ptr<TransportWatch> last;
  std::lock_guard lock(mutex);
  auto watch = last.lock();
  if (!watch) last = watch = std::make_shared<TransportWatch>();
  return watch;
}

TransportWatch::TransportWatch() : thread_([this] { run(); }) {}

TransportWatch::~TransportWatch() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TransportWatch::add(const void* owner, std::function<void()> look) {
  std::lock_guard lock(mutex_);
  looks_[owner] = std::move(look);
}

void TransportWatch::remove(const void* owner) {
  std::lock_guard lock(mutex_);
  looks_.erase(owner);
}

void TransportWatch::run() {
  // Signals are for the program's threads, and a socket whose other end has died must not end the process.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [this] { return ends_; }))
    for (const auto& [owner, look] : looks_) look();
}

}  // namespace muster::comm
