#include "muster/runtime/detail/loop_access.h"

#include <exception>

#include "muster/base/detail/log.h"
#include "random_state.h"
#include "runtime_state.h"

namespace muster {

Trace& trace(RuntimeRef runtime) { return *runtime.state().trace(); }

State random_states(RuntimeRef runtime) { return runtime::random_state(runtime.state().device()); }
void set_random_states(RuntimeRef runtime, const State& states) {
  runtime::set_random_state(states, runtime.state().device());
}

KeptRandomStates::KeptRandomStates(RuntimeRef runtime) : runtime_(runtime), states_(clone(random_states(runtime))) {}
KeptRandomStates::~KeptRandomStates() {
  try {
    set_random_states(runtime_, states_);
  } catch (const std::exception& error) {
    log::warning("the random states from before could not be set again: ", error.what());
  }
}

bool any_rank_has_gradients(RuntimeRef runtime, const Optimizer& optimizer) {
  return runtime.state().gradient_processing().join_other_ranks(*optimizer.prepared());
}

Votes agreed_votes(RuntimeRef runtime) { return runtime.state().agreed_votes(); }

}  // namespace muster
