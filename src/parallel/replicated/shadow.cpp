#include <mutex>

#include <c10/util/ScopeExit.h>

#include "parallel/replicated/reducer.h"

namespace muster::parallel {

void Reducer::set_session(JoinSession* session, int64_t model) noexcept {
  session_ = session;
  session_index_ = model;
  if (session) return;
  divide_by(group_.size());
  root_ = 0;
}

void Reducer::shadow(int root, double divisor) {
  const std::lock_guard lock(mutex_);
  if (active_) discard();
  divide_by(divisor);
  root_ = root;
  for (size_t i = 0; i < states_.size(); ++i) {
    auto& parameter = replica_.parameters()[i];
    states_[i].fired = false;
    auto& gradient = parameter.tensor.mutable_grad();
    // What was communicated before must not count again.
    if (gradient.defined() && gradient.is_alias_of(parameter.gradient)) gradient.reset();
    fill(i);
  }
  active_ = shadow_ = true;
  broken_ = false;
  bypass_.backward_begins();
  const auto restore = c10::make_scope_exit([this] {
    shadow_ = false;
    root_ = 0;
    divide_by(group_.size());
  });
  finish(/*reports=*/true);
}

}  // namespace muster::parallel
