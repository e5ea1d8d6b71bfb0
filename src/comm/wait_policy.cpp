#include "wait_policy.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace muster::comm {

WarningTimeout::WarningTimeout(std::chrono::milliseconds timeout) : end_(begin_ + timeout) {}

std::chrono::milliseconds WarningTimeout::left() const { return left_until(end_); }

std::chrono::milliseconds WarningTimeout::next() {
  return std::clamp(std::exchange(part_, kLaterWords), std::chrono::milliseconds(1), left());
}

Reminder::Reminder(std::function<std::string(double)> words)
    : words_(std::move(words)), thread_([this] { remind(); }) {}

Reminder::~Reminder() {
  {
    const base::Lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Reminder::remind() {
  const WarningTimeout waiting(std::chrono::milliseconds(0));
  auto part = kFirstWord;
  base::Lock lock(mutex_);
  while (!ended_.wait_for(lock, std::exchange(part, kLaterWords), [this]() MUSTER_REQUIRES(mutex_) { return end_; }))
    log::warning(words_(waiting.waited_seconds()));
}

bool WaitPolicy::wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) {
  if (deadline != TimePoint::max()) return changed_.wait_until(lock, deadline, ready);
  changed_.wait(lock, ready);
  return true;
}

void WaitPolicy::changed(base::Lock&) { changed_.notify_all(); }

std::thread WaitPolicy::start_thread(std::function<void()> body) { return std::thread(std::move(body)); }

}  // namespace muster::comm
