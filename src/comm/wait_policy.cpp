#include "comm/wait_policy.h"

#include <utility>

namespace muster::comm {

bool WaitPolicy::wait(Lock& lock, const std::function<bool()>& ready, TimePoint deadline) {
  if (deadline != TimePoint::max()) return changed_.wait_until(lock, deadline, ready);
  changed_.wait(lock, ready);
  return true;
}

void WaitPolicy::changed(Lock&) { changed_.notify_all(); }

std::thread WaitPolicy::start_thread(std::function<void()> body) { return std::thread(std::move(body)); }

}  // namespace muster::comm
