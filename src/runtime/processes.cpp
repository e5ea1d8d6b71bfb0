#include "muster/runtime/detail/processes.h"

#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include "muster/comm/detail/agreement.h"
#include "muster/runtime/detail/batch_size_search.h"
#include "muster/runtime/detail/gathering.h"
#include "muster/runtime/detail/logger.h"
#include "session.h"

namespace muster::runtime {

Logger Processes::logger(std::string name) const { return Logger(std::move(name), group()); }

void Processes::launch() { session_->launch(); }
int Processes::rank() const { return session_->cluster().rank; }
int Processes::local_rank() const { return session_->cluster().local_rank; }
int Processes::node_rank() const { return session_->cluster().node_rank; }
int Processes::world_size() const { return session_->cluster().world_size; }
c10::Device Processes::device() const { return session_->device(); }
const comm::Communicator& Processes::group() const { return session_->group(); }
void Processes::barrier() const { group().barrier(); }

bool Processes::is_turn(const Session& session, const Turn& turn) {
  const auto& cluster = session.cluster();
  if (cluster.world_size == 1) return true;
  switch (turn.kind) {
    case Turn::Kind::main: return cluster.rank == 0;
    case Turn::Kind::local_main: return cluster.local_rank == 0;
    case Turn::Kind::last: return cluster.rank == cluster.world_size - 1;
    case Turn::Kind::rank: return cluster.rank == turn.index;
    case Turn::Kind::local_rank: return cluster.local_rank == turn.index;
  }
  return false;
}

void Processes::print_line(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void Processes::set_trigger() { session_->flags().trigger = true; }

bool Processes::check_trigger() {
  const bool any = comm::any_rank(group(), "check_trigger", session_->flags().trigger);
  if (any) session_->flags().trigger = false;
  return any;
}

void Processes::catch_signals() {
  auto& watch = session_->flags().signals;
  if (!watch) watch = std::make_unique<SignalWatch>(std::vector<int>{SIGTERM, SIGUSR1});
}

int Processes::signal_received() {
  auto& flags = session_->flags();
  comm::Agreement agreement(group(), "signal_received");
  agreement.ask(flags.signals ? flags.signals->received() : 0, comm::ReduceOp::max);
  agreement.run();
  return static_cast<int>(agreement.answer(0));
}

TrialGroup Processes::trial_group() {
  if (world_size() == 1) return {[] {}, [] {}, [] {}};
  const auto whole = group();
  // What a try leaves behind on a rank that ran out of memory must not end the group of the program.
  return {[session = session_, whole] { session->use_group(whole.as_library("a try of a batch size").duplicate()); },
          [session = session_] { session->group().abort("another rank gave up this batch size"); },
          [session = session_, whole] { session->use_group(whole); }};
}

std::string Processes::plan() const { return session_->plan(); }

const comm::Communicator& group_of(const Session& session) { return session.group(); }
int rank_of(const Session& session) { return session.cluster().rank; }
int world_size_of(const Session& session) { return session.cluster().world_size; }
std::optional<StepRows> step_rows(const Session& session) { return session.step_rows(); }

}  // namespace muster::runtime
