#include "sim/progress.h"

#include <chrono>
#include <cstdint>

#include "sim/machine.h"

namespace muster::sim {

std::shared_ptr<Progress> Progress::get() {
  static std::mutex mutex;
  static std::weak_ptr<Progress> current;
  const std::lock_guard lock(mutex);
  auto progress = current.lock();
  if (!progress) current = progress = std::make_shared<Progress>();
  return progress;
}

Progress::Progress() : thread_([this] { run(); }) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Progress::run() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::microseconds(200), [&] { return stops_; })) {
    lock.unlock();
    Machine::get().run_if_idle(seen);
    lock.lock();
  }
}

}  // namespace muster::sim
