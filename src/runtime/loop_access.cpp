#include "muster/runtime/loop_access.h"

#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "random_state.h"
#include "runtime_state.h"

// Why: docs/decisions/0098-what-loops-of-a-programs-own-ask.md.
namespace muster {

Trace& trace(const Runtime& runtime) { return *runtime::state_of(runtime).trace(); }

State random_states(const Runtime& runtime) { return runtime::random_state(runtime::state_of(runtime).device()); }
void set_random_states(const Runtime& runtime, const State& states) {
  runtime::set_random_state(states, runtime::state_of(runtime).device());
}

KeptRandomStates::KeptRandomStates(const Runtime& runtime)
    : state_(runtime::state_of(runtime)), states_(clone(random_states(runtime))) {}
KeptRandomStates::~KeptRandomStates() {
  try {
    runtime::set_random_state(states_, state_.device());
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

CaughtSignals::CaughtSignals(const Runtime& runtime) : state_(runtime::state_of(runtime)) {
  auto& flags = state_.flags();
  const std::lock_guard lock(flags.signals_mutex);
  own_ = !flags.signals;
  if (own_) flags.signals = std::make_unique<SignalWatch>(std::vector<int>{SIGTERM, SIGUSR1});
}
CaughtSignals::~CaughtSignals() {
  if (!own_) return;
  auto& flags = state_.flags();
  const std::lock_guard lock(flags.signals_mutex);
  flags.signals.reset();
}
int CaughtSignals::received() const { return state_.flags().received(); }
void CaughtSignals::forget(int signal) {
  auto& flags = state_.flags();
  const std::lock_guard lock(flags.signals_mutex);
  if (flags.signals) flags.signals->forget(signal);
}

Votes agreed_votes(const Runtime& runtime) { return runtime::state_of(runtime).agreed_votes(); }
void vote_to_stop(const Runtime& runtime, bool on) { runtime::state_of(runtime).flags().stop = on; }
void forget_votes(const Runtime& runtime) { runtime::state_of(runtime).forget_votes(); }

}  // namespace muster
