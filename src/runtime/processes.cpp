#include "muster/runtime/detail/processes.h"

#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include "muster/comm/detail/agreement.h"
#include "muster/runtime/detail/batch_size_search.h"
#include "muster/runtime/detail/gathering.h"
#include "muster/runtime/detail/logger.h"
#include "runtime_state.h"

namespace muster::runtime {

Logger Processes::logger(std::string name) const { return Logger(std::move(name), group()); }

void Processes::launch() { state_->launch(); }
int Processes::rank() const { return state_->cluster().rank; }
int Processes::local_rank() const { return state_->cluster().local_rank; }
int Processes::node_rank() const { return state_->cluster().node_rank; }
int Processes::world_size() const { return state_->cluster().world_size; }
c10::Device Processes::device() const { return state_->device(); }
const comm::Communicator& Processes::group() const { return state_->group(); }
void Processes::barrier() const { group().barrier(); }

bool Processes::is_selected(const RuntimeState& state, const RankSelector& selector) {
  const auto& cluster = state.cluster();
  if (cluster.world_size == 1) return true;
  switch (selector.kind) {
    case RankSelector::Kind::main: return cluster.rank == 0;
    case RankSelector::Kind::local_main: return cluster.local_rank == 0;
    case RankSelector::Kind::last: return cluster.rank == cluster.world_size - 1;
    case RankSelector::Kind::rank: return cluster.rank == selector.index;
    case RankSelector::Kind::local_rank: return cluster.local_rank == selector.index;
  }
  return false;
}

void Processes::print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void Processes::set_trigger() { state_->flags().trigger = true; }

bool Processes::check_trigger() {
  const bool any = comm::any_rank(group(), "check_trigger", state_->flags().trigger);
  if (any) state_->flags().trigger = false;
  return any;
}

void Processes::catch_signals() {
  auto& flags = state_->flags();
  const std::lock_guard lock(flags.signals_mutex);
  auto& watch = flags.signals;
  if (!watch) watch = std::make_unique<SignalWatch>(std::vector<int>{SIGTERM, SIGUSR1});
}

int Processes::signal_received() {
  auto& flags = state_->flags();
  comm::CoalescedAllReduce scalars(group(), "signal_received");
  scalars.add(flags.received(), comm::ReduceOp::max);
  scalars.run();
  return static_cast<int>(scalars.result(0));
}

TrialGroup Processes::trial_group() {
  if (world_size() == 1) return {[] {}, [] {}, [] {}};
  const auto whole = group();
  // What an attempt leaves behind on a rank that ran out of memory must not end the group of the program.
  return {[state = state_, whole] { state->use_group(whole.internal("a try of a batch size").duplicate()); },
          [state = state_] { state->group().abort("another rank gave up this batch size"); },
          [state = state_, whole] { state->use_group(whole); }};
}

std::string Processes::plan() const { return state_->plan(); }

const comm::Communicator& group_of(const RuntimeState& state) { return state.group(); }
int rank_of(const RuntimeState& state) { return state.cluster().rank; }
int world_size_of(const RuntimeState& state) { return state.cluster().world_size; }
std::optional<StepRows> step_rows(const RuntimeState& state) { return state.step_rows(); }

}  // namespace muster::runtime
