#include "muster/runtime/detail/loop_access.h"

#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

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

bool found_inf_is_ready(const Optimizer& optimizer) { return optimizer.prepared()->found_inf_is_ready(); }
void when_found_inf_is_ready(const Optimizer& optimizer, std::function<void()> call) {
  optimizer.prepared()->when_found_inf_is_ready(std::move(call));
}

bool evaluates_closure(const Optimizer& optimizer) { return optimizer.prepared()->evaluates_closure(); }

CaughtSignals::CaughtSignals(RuntimeRef runtime) : runtime_(runtime) {
  auto& flags = runtime_.state().flags();
  const std::lock_guard lock(flags.signals_mutex);
  own_ = !flags.signals;
  if (own_) flags.signals = std::make_unique<SignalWatch>(std::vector<int>{SIGTERM, SIGUSR1});
}
CaughtSignals::~CaughtSignals() {
  if (!own_) return;
  auto& flags = runtime_.state().flags();
  const std::lock_guard lock(flags.signals_mutex);
  flags.signals.reset();
}
int CaughtSignals::received() const { return runtime_.state().flags().received(); }
void CaughtSignals::forget(int signal) {
  auto& flags = runtime_.state().flags();
  const std::lock_guard lock(flags.signals_mutex);
  if (flags.signals) flags.signals->forget(signal);
}

Votes agreed_votes(RuntimeRef runtime) { return runtime.state().agreed_votes(); }
void vote_to_stop(RuntimeRef runtime, bool on) { runtime.state().flags().stop = on; }
void forget_votes(RuntimeRef runtime) { runtime.state().forget_votes(); }

}  // namespace muster
