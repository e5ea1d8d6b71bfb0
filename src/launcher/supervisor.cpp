#include "supervisor.h"

#include <algorithm>

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAgain{100};      // time until the next kill if some processes are left
constexpr milliseconds kNextLook{1000};  // shortest time between two checks for stopped ranks
constexpr milliseconds kEnd{10000};      // time for a process that has closed its connections to end

}  // namespace

void Supervisor::poll() {
  for (auto& child : *setup_.children) child.poll();
  if (!cause_ && !stopped_) find_cause();
  if (!kill_at_ || Clock::now() < *kill_at_ || all_ended()) return;
  signal_all(SIGKILL, true);
  kill_at_ = Clock::now() + kAgain;
}

std::vector<RankSnapshot> Supervisor::snapshot() const {
  std::vector<RankSnapshot> ranks;
  const auto add = [&](const std::optional<ExitStatus>& end, int rank, const cluster::Report& report) {
    ranks.push_back({end, rank, report.read(), cluster::read_error_message(report)});
  };
  if (setup_.own) add(own_end_, setup_.own->rank, setup_.own->report);
  for (const auto& child : *setup_.children) {
    add(child.end(), child.rank(), child.report());
    ranks.back().is_stopped = child.is_stopped();
  }
  return ranks;
}

void Supervisor::find_cause() {
  const auto ranks = snapshot();
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankSnapshot& rank) { return rank.end && rank.end->failed(); }))
    return watch_last_rank(ranks);
  const auto now = Clock::now();
  if (!failed_at_) failed_at_ = now;
  const bool briefly = now >= waited_until(WaitedFor::answer), long_enough = now >= waited_until(WaitedFor::end);
  auto cause = find_root_cause(ranks, long_enough ? WaitedFor::end : briefly ? WaitedFor::answer : WaitedFor::nothing);
  if (cause) end_by(std::move(*cause));
}

void Supervisor::end_by(RootCause cause) {
  const auto now = Clock::now();
  cause_ = std::move(cause);
  cause_->after = std::chrono::duration_cast<milliseconds>(now - start_);
  signal_all(SIGTERM, true);
  kill_at_ = now + setup_.grace;
}

/// No event reports that a rank is stopped, so ranks are checked repeatedly.
void Supervisor::watch_last_rank(const std::vector<RankSnapshot>& ranks) {
  const auto line = describe_last_rank(ranks, setup_.layout);
  auto stopped = find_stopped_rank(ranks);
  if (line.empty() && !stopped) return look_at_.reset();
  if (!look_at_) look_at_ = Clock::now() + setup_.grace;
  if (Clock::now() < *look_at_) return;
  look_at_ = Clock::now() + std::max(setup_.grace, kNextLook);
  if (stopped) return end_by(std::move(*stopped));
  if (!std::exchange(noticed_, true)) notice_ = line;
}

Supervisor::Clock::time_point Supervisor::waited_until(WaitedFor waited) const {
  return *failed_at_ + (waited == WaitedFor::end ? std::max(setup_.grace, kEnd) : setup_.grace);
}

void Supervisor::stop(milliseconds grace) {
  stopped_ = true;
  kill_at_ = Clock::now() + grace;
}

void Supervisor::end_all() {
  stop(setup_.grace);
  signal_all(SIGTERM, true);
}

bool Supervisor::made_steps() const {
  const auto ranks = snapshot();
  return std::any_of(ranks.begin(), ranks.end(), [](const RankSnapshot& rank) { return rank.reported.steps > 0; });
}

bool Supervisor::all_ended() const {
  return std::all_of(setup_.children->begin(), setup_.children->end(),
                     [](const Child& child) { return child.end().has_value(); });
}

void Supervisor::add_to(std::vector<pollfd>& entries) const {
  for (const auto& child : *setup_.children)
    if (!child.end()) entries.push_back({child.pid_fd(), POLLIN, 0});
}

Supervisor::Clock::time_point Supervisor::due() const {
  const auto due = kill_at_.value_or(Clock::time_point::max());
  if (cause_ || stopped_) return due;
  if (!failed_at_) return std::min(due, look_at_.value_or(Clock::time_point::max()));
  const auto briefly = waited_until(WaitedFor::answer);
  return std::min(due, Clock::now() < briefly ? briefly : waited_until(WaitedFor::end));
}

void Supervisor::signal_all(int number, bool group) const {
  for (const auto& child : *setup_.children) child.signal(number, group);
}

}  // namespace muster::launcher
