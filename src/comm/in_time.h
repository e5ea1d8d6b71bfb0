#pragma once

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

namespace muster::comm {

/// A call that has not returned in time.
struct LateCall : std::runtime_error {
  LateCall() : std::runtime_error("it has not answered in time") {}
};

/// What `call` returns or throws. It runs on a thread of its own, which is left behind if it takes longer than `limit`:
/// it must own what it uses. Throws: LateCall then.
template <class F>
std::invoke_result_t<F> call_in_time(std::chrono::milliseconds limit, F call) {
  std::packaged_task<std::invoke_result_t<F>()> task(std::move(call));
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_for(limit) == std::future_status::ready) {
    thread.join();
    return result.get();
  }
  thread.detach();
  throw LateCall();
}

}  // namespace muster::comm
