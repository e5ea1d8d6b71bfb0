#include "muster/runtime/detail/runtime.h"

#include <utility>

#include "runtime_state.h"

namespace muster {

Runtime::Runtime(const RuntimeOptions& options) : Runtime(std::make_shared<runtime::RuntimeState>(options)) {}
Runtime::Runtime(std::shared_ptr<runtime::RuntimeState> state)
    : Processes(state), Gathering(state), Training(state), Saving(state), state_(std::move(state)) {}
Runtime::~Runtime() {
  if (state_) state_->leave_group();
}
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

}  // namespace muster
