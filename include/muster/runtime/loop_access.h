#pragma once

#include <cstdint>
#include <functional>

#include "muster/runtime/detail/state_access.h"
#include "muster/track/trace.h"
#include "muster/tree/state.h"

/// Functions for custom training loops, beyond those of Accelerator and Fabric. See
/// docs/decisions/0098-what-loops-of-a-programs-own-ask.md.
namespace muster {

class Optimizer;
class Scheduler;

/// The trace of this rank, which profile() switches on: TraceScope span(trace(accelerator), "validation").
Trace& trace(const Runtime& runtime);

/// The states of LibTorch's default generators in this process: the CPU's, and the device's if it is not the CPU.
State random_states(const Runtime& runtime);
/// Restores states that random_states() returned.
/// Throws: CheckpointError (MU208, MU209) for any other state.
void set_random_states(const Runtime& runtime, const State& states);

/// Restores the states of the default generators when it is destroyed, so that code in its scope does not change the
/// program's random numbers. Thread safety: one thread at a time. Requires: the runtime outlives it.
class [[nodiscard("name the scope: KeptRandomStates kept(accelerator)")]] KeptRandomStates {
 public:
  explicit KeptRandomStates(const Runtime& runtime);
  KeptRandomStates(const KeptRandomStates&) = delete;
  KeptRandomStates& operator=(const KeptRandomStates&) = delete;
  ~KeptRandomStates();

 private:
  runtime::RuntimeState& state_;
  State states_;
};

/// Whether any rank has a gradient for the models of this optimizer. A rank whose loss used none of them takes part in
/// the reductions of the others, as Optimizer::step() would, and gets zeros or MU152. Under "fsdp": whether this rank
/// has a gradient, without communication. Collective: as Optimizer::step(). Throws: UsageError (MU152) as backward.
bool any_rank_has_gradients(const Runtime& runtime, const Optimizer& optimizer);

/// Whether it is known if the last step of this optimizer was skipped, so that step_was_skipped() does not wait. Always
/// true on the CPU.
bool found_inf_is_ready(const Optimizer& optimizer);
/// Calls `call` when that is known: in the next step(), or earlier if the program asks, for example for the rate of a
/// scheduler. Requires: !found_inf_is_ready(optimizer).
void when_found_inf_is_ready(const Optimizer& optimizer, std::function<void()> call);

/// Whether step(closure) passes the closure to the optimizer's own step(), which may call it any number of times, as
/// LBFGS does. Otherwise the closure is called once, before the update. If losses are scaled, this is true for LBFGS
/// only, which is refused there.
bool evaluates_closure(const Optimizer& optimizer);

/// Tells the scheduler how many steps it makes in the whole training. If its schedule was made for another number, the
/// main rank warns once.
void expect_steps(const Scheduler& scheduler, int64_t steps);

/// The result of the ranks' votes: set_trigger(), vote_to_stop(), and the signals that catch_signals() records.
struct Votes {
  int signal = 0;        ///< the highest signal that any rank has received; 0: none
  bool stop = false;     ///< whether any rank has called vote_to_stop()
  bool trigger = false;  ///< whether any rank has called set_trigger()
};

/// Records SIGTERM and SIGUSR1 for agreed_votes() while it lives, instead of letting them end the program. Handlers
/// that the program installed before still run. Its destructor restores them, unless catch_signals() was called before.
/// Thread safety: one thread at a time. Requires: the runtime outlives it.
class [[nodiscard("name the scope: CaughtSignals caught(accelerator)")]] CaughtSignals {
 public:
  explicit CaughtSignals(const Runtime& runtime);
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  ~CaughtSignals();
  /// The signal that this rank has received; 0: none.
  int received() const;
  /// Clears a signal, if this rank has received it.
  void forget(int signal);

 private:
  runtime::RuntimeState& state_;
  bool own_ = false;
};

/// Combines signal_received() and check_trigger(), with equal results on every rank. If ranks have reduced gradients by
/// "ddp" since the last call, the votes travelled with them, as they were when that reduction began, and this call does
/// not communicate; later votes are seen after the next reduction. Otherwise this call is one collective. Clears the
/// triggers and votes to stop that it returns.
/// Collective.
Votes agreed_votes(const Runtime& runtime);
/// Sets this rank's vote to end the loop, or withdraws it; a vote that was sent with gradients cannot be withdrawn. Not
/// collective.
void vote_to_stop(const Runtime& runtime, bool on = true);
/// Clears triggers, votes to stop, and votes that arrived with the gradients of a loop that ended before it called
/// agreed_votes(), for example by an exception. Not collective; call it on every rank before another loop.
void forget_votes(const Runtime& runtime);

}  // namespace muster
