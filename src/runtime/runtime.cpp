#include "muster/runtime/detail/runtime.h"

#include <utility>

#include "session.h"

namespace muster {

Runtime::Runtime(const RuntimeOptions& options) : Runtime(std::make_shared<runtime::Session>(options)) {}
Runtime::Runtime(std::shared_ptr<runtime::Session> session)
    : Processes(session), Gathering(session), Training(session), Saving(session), session_(std::move(session)) {}
Runtime::~Runtime() {
  if (session_) session_->leave_group();
}
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;

}  // namespace muster
