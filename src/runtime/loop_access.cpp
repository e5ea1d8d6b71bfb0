#include "muster/runtime/loop_access.h"

#include "base/log.h"
#include "random_state.h"
#include "rank_votes.h"
#include "runtime_state.h"

// Why: docs/decisions/0098-what-loops-of-a-programs-own-ask.md.
namespace muster {

Trace& trace(const Runtime& runtime) { return *runtime::state_of(runtime).trace(); }

State random_states(const Runtime& runtime) {
  return runtime::random_state(runtime::state_of(runtime).placement().device());
}
void set_random_states(const Runtime& runtime, const State& states) {
  runtime::set_random_state(states, runtime::state_of(runtime).placement().device());
}

KeptRandomStates::KeptRandomStates(const Runtime& runtime)
    : state_(runtime::state_of(runtime)), states_(clone(random_states(runtime))) {}
KeptRandomStates::~KeptRandomStates() {
  try {
    runtime::set_random_state(states_, state_.placement().device());
  } catch (const std::exception& error) {
    log::warning("the random states from before could not be set again: ", error.what());
  }
}

bool any_rank_has_gradients(const Runtime& runtime, const Optimizer& optimizer) {
  return runtime::state_of(runtime).gradient_processing().join_other_ranks(*optimizer.prepared());
}

bool found_inf_is_ready(const Optimizer& optimizer) { return optimizer.prepared()->found_inf_is_ready(); }
void when_found_inf_is_ready(const Optimizer& optimizer, std::function<void()> call) {
  optimizer.prepared()->when_found_inf_is_ready(std::move(call));
}

bool evaluates_closure(const Optimizer& optimizer) { return optimizer.prepared()->evaluates_closure(); }

CaughtSignals::CaughtSignals(const Runtime& runtime)
    : state_(runtime::state_of(runtime)), own_(state_.votes().catch_signals()) {}
CaughtSignals::~CaughtSignals() {
  if (own_) state_.votes().release_signals();
}
int CaughtSignals::received() const { return state_.votes().received(); }
void CaughtSignals::forget(int signal) { state_.votes().forget_signal(signal); }

Votes agreed_votes(const Runtime& runtime) {
  auto& state = runtime::state_of(runtime);
  return state.votes().agree(state.placement().group());
}
void vote_to_stop(const Runtime& runtime, bool on) { runtime::state_of(runtime).votes().set_stop(on); }
void forget_votes(const Runtime& runtime) {
  auto& state = runtime::state_of(runtime);
  state.placement().require_launched();
  state.votes().forget();
}

}  // namespace muster
