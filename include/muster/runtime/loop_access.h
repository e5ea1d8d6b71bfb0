#pragma once

#include <cstdint>
#include <functional>

#include "muster/runtime/detail/state_access.h"
#include "muster/track/trace.h"
#include "muster/tree/state.h"

/// What a loop of the program's own may need beyond the functions of its Accelerator or Fabric.
namespace muster {

class Optimizer;
class Scheduler;

/// The trace of this rank, which profile() switches on: TraceScope span(trace(accelerator), "validation").
Trace& trace(const Runtime& runtime);

/// The states of LibTorch's default generators in this process: the CPU's, and the device's if it is another.
State random_states(const Runtime& runtime);
/// Throws: CheckpointError (MU208, MU209) for another state than one of random_states().
void set_random_states(const Runtime& runtime, const State& states);

/// Its end gives the default generators the states that they had at its begin, so that what runs meanwhile changes no
/// random number of the program. Thread safety: one thread at a time. Requires: the runtime lives longer.
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

/// Whether some rank has a gradient for the models of this optimizer. A rank whose loss used none of them takes part in
/// the reductions of the others, as Optimizer::step() would, and gets zeros or MU152. Under "fsdp": whether this rank
/// has one, without communication. Collective: as Optimizer::step(). Throws: UsageError (MU152) as backward.
bool any_rank_has_gradients(const Runtime& runtime, const Optimizer& optimizer);

/// Whether the last step of this optimizer is known to be made or left out, so that step_was_skipped() waits for
/// nothing. Always on the CPU.
bool found_inf_is_ready(const Optimizer& optimizer);
/// Calls it when that is known: in the next step(), or as soon as somebody asks, also for a rate through a scheduler.
/// Requires: the step is not known yet.
void when_found_inf_is_ready(const Optimizer& optimizer, std::function<void()> call);

/// Whether step(closure) hands the closure to a step() of the optimizer's own, which may call it as often as it wants,
/// as LBFGS does. Any other optimizer calls it once, before it updates. Where losses are scaled, of all optimizers only
/// LBFGS, which is refused there.
bool evaluates_closure(const Optimizer& optimizer);

/// Says how many steps the scheduler makes in the whole training. A schedule that was made for another number is named
/// once, on the main rank.
void expect_steps(const Scheduler& scheduler, int64_t steps);

/// What ranks vote on: set_trigger(), vote_to_stop(), and the signals that catch_signals() records.
struct Votes {
  int signal = 0;        ///< that some rank has received, the highest; 0: none
  bool stop = false;     ///< some rank has called vote_to_stop()
  bool trigger = false;  ///< some rank has called set_trigger()
};

/// While it lives, SIGTERM and SIGUSR1 do not end the program but are recorded for agreed_votes(). Handlers that the
/// program installed before still run. Its end restores what was there, unless catch_signals() was called before.
/// Thread safety: one thread at a time. Requires: the runtime lives longer.
class [[nodiscard("name the scope: CaughtSignals caught(accelerator)")]] CaughtSignals {
 public:
  explicit CaughtSignals(const Runtime& runtime);
  CaughtSignals(const CaughtSignals&) = delete;
  CaughtSignals& operator=(const CaughtSignals&) = delete;
  ~CaughtSignals();
  /// The signal that this rank has received; 0: none.
  int received() const;
  /// From now on a signal that this rank has received counts as not received.
  void forget(int signal);

 private:
  runtime::RuntimeState& state_;
  bool own_ = false;
};

/// As signal_received() and check_trigger() in one, with the same answer on every rank. Where ranks have reduced
/// gradients by "ddp" since the last call, the votes came with them, as they stood when that reduction began, and
/// nothing is communicated here: a later vote is seen after the next reduction. Elsewhere this is one collective.
/// Triggers and votes to stop that were seen are cleared.
/// Collective.
Votes agreed_votes(const Runtime& runtime);
/// Gives this rank's vote that the loop ends, or takes it back; one that has gone out with gradients cannot be taken
/// back. Not collective.
void vote_to_stop(const Runtime& runtime, bool on = true);
/// Forgets triggers, votes to stop, and what came with the gradients of a loop that ended before it asked for the
/// votes, as by an exception. Not collective; call it on every rank before another loop.
void forget_votes(const Runtime& runtime);

}  // namespace muster
