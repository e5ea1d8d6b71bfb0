#include "muster/runtime/flops.h"

#include <memory>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>

#include "hook/operator_flops.h"

namespace muster {
namespace {

// LibTorch passes no context to a callback, so the count is thread-local.
struct Counting {
  int64_t count = 0;
  bool on = false;
};
Counting& counting_here() {
  thread_local Counting counting;
  return counting;
}

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call) {
  counting_here().count += hook::flops_of(call.name(), call.inputs());
  return nullptr;
}

}  // namespace

int64_t measure_flops(const std::function<void()>& f) {
  auto& counting = counting_here();
  const auto before = std::exchange(counting, {.on = true});
  at::CallbackHandle handle = 0;
  if (!before.on)  // a second callback would count each call twice
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  const auto finish = c10::make_scope_exit([&] {
    if (!before.on) at::removeCallback(handle);
    counting = before;
  });
  f();
  return counting.count;
}

}  // namespace muster
