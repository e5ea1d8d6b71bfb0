#pragma once

#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

namespace muster::comm {

/// Thrown by call_in_time() if the call has not returned in time.
struct LateCall : std::runtime_error {
  LateCall() : std::runtime_error("it has not answered in time") {}
};

/// Returns or throws what `call` does. `call` runs on a new thread, which is left running if it takes longer than
/// `limit`, so it must own everything that it uses. Throws: LateCall in that case.
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
