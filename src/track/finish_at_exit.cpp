#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "run.h"

namespace muster::track {
namespace {

constexpr auto kAtExit = std::chrono::seconds(10);  // longest wait for each run

struct LiveRuns {
  std::mutex mutex;
  std::vector<std::weak_ptr<Run>> runs;
  std::terminate_handler handler_before = nullptr;
};

// Never destroyed, since it is used at exit.
LiveRuns& live_runs() {
  static auto* const runs = new LiveRuns;
  return *runs;
}

void finish_all(RunStatus status) noexcept {
  std::vector<std::weak_ptr<Run>> runs;
  {
    std::unique_lock lock(live_runs().mutex, std::try_to_lock);
    if (lock) runs.swap(live_runs().runs);
  }
  for (const auto& one : runs)
    if (const auto run = one.lock()) run->finish(status, kAtExit);
}

void finish_at_terminate() {
  finish_all(RunStatus::failed);
  if (const auto before = live_runs().handler_before) before();
  std::abort();
}

}  // namespace

// Neither std::exit nor an uncaught exception destroys the objects of main().
void finish_at_exit(const std::shared_ptr<Run>& run) {
  auto& live = live_runs();
  std::lock_guard lock(live.mutex);
  if (!live.handler_before) live.handler_before = std::set_terminate(finish_at_terminate);
  // Registered again for each run, so that it runs before the exit handlers of libraries that its trackers have loaded
  // since, such as OpenSSL.
  std::atexit([] { finish_all(RunStatus::success); });
  std::erase_if(live.runs, [](const auto& one) { return one.expired(); });
  live.runs.push_back(run);
}

}  // namespace muster::track
