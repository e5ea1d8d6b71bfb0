#include "watch.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/deadline.h"
#include "launcher/rendezvous/node_agent.h"
#include "launcher/rendezvous/rendezvous_probe.h"

namespace muster::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kStopTime{30000};  // time for ranks told to stop, which may save their state
constexpr milliseconds kLastWords{200};   // time for output in flight after all ranks have ended

bool stops(int number) { return number == SIGINT || number == SIGTERM || number == SIGHUP; }

}  // namespace

RelayedSignals::RelayedSignals() {
  sigset_t relayed;
  sigemptyset(&relayed);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT})
    sigaddset(&relayed, number);
  pthread_sigmask(SIG_BLOCK, &relayed, &before_);
  fd_ = Descriptor(signalfd(-1, &relayed, SFD_CLOEXEC | SFD_NONBLOCK));
}

RelayedSignals::~RelayedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

int RelayedSignals::next() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

int RelayedSignals::wait_until(Clock::time_point time, std::vector<pollfd> others) const {
  others.push_back({fd(), POLLIN, 0});
  for (;;) {
    while (int number = next()) {
      if (stops(number)) return number;
      if (number == SIGTSTP) raise(SIGSTOP);
    }
    if (Clock::now() >= time) return 0;
    poll(others.data(), others.size(), milliseconds_until(time));
    if (std::any_of(others.begin(), others.end() - 1, [](const pollfd& other) { return other.revents != 0; })) return 0;
  }
}

int Watch::run(const std::vector<Child>& children) {
  auto& supervisor = *owners_.supervisor;
  for (supervisor.poll(); !supervisor.all_ended(); supervisor.poll()) {
    attend_to_job();
    if (const auto notice = supervisor.take_notice()) owners_.console->say(*notice);
    poll_once(true);
    while (int number = owners_.signals->next()) relay(number, asked_here_);
  }
  attend_to_job();
  if (owners_.agent) owners_.agent->report_end(supervisor, stop_signal_);
  drain(children.front().rank());
  if (std::none_of(children.begin(), children.end(), [](const Child& child) { return child.end()->failed(); }))
    return 0;
  return supervisor.cause() ? supervisor.cause()->end.exit_code() : 128 + stop_signal_;
}

/// Exchanges messages with the launchers of other nodes.
void Watch::attend_to_job() {
  if (owners_.probe) owners_.probe->attend();
  if (!owners_.agent) return;
  owners_.agent->attend();
  // Ranks that were told to stop keep their full time.
  if (!stop_signal_) owners_.agent->follow(*owners_.supervisor);
  for (const auto& line : owners_.agent->take_lines()) owners_.console->say("muster: " + line);
  if (const int number = owners_.agent->next_signal()) relay(number, asked_by_node_0_);
}

void Watch::poll_once(bool processes, Clock::time_point deadline) {
  std::vector<pollfd> entries{{owners_.signals->fd(), POLLIN, 0}};
  const auto add = [&](const auto* owner) {
    owner->add_to(entries);
    deadline = std::min(deadline, owner->due());
  };
  if (owners_.agent) add(owners_.agent);
  if (owners_.probe && processes) add(owners_.probe);
  if (processes) add(owners_.supervisor);
  owners_.console->add_to(entries);
  if (poll(entries.data(), entries.size(), milliseconds_until(deadline)) > 0) owners_.console->handle(entries);
  if (owners_.agent) owners_.agent->attend();
}

/// `asked`: per source, because a scheduler stops the launchers of all nodes at once, and the same request also arrives
/// from node 0.
void Watch::relay(int number, bool& asked) {
  auto& supervisor = *owners_.supervisor;
  if (number == SIGTSTP) {
    supervisor.signal_all(SIGTSTP, true);
    raise(SIGSTOP);
    return supervisor.signal_all(SIGCONT, true);
  }
  if (number == SIGWINCH) owners_.console->resize();
  const bool again = stops(number) && std::exchange(asked, true);
  if (stops(number) && (again || supervisor.cause())) {
    // A second request: stop waiting.
    if (owners_.agent) owners_.agent->stop(number);
    if (!stop_signal_) stop_signal_ = number;
    supervisor.signal_all(SIGKILL, true);
    return;
  }
  if (stops(number) && owners_.agent) owners_.agent->stop(number);
  if (stops(number) && stop_signal_) return;
  // A signal that stops the job goes to all processes that the ranks have started, as from a terminal; other signals go
  // only to the ranks.
  supervisor.signal_all(number, stops(number) || number == SIGCONT);
  if (!stops(number)) return;
  stop_signal_ = number;
  supervisor.stop(kStopTime);
}

void Watch::drain(int first_rank) {
  owners_.console->read_all();
  // Processes that ranks have left running in their groups may hold the pipes open.
  owners_.supervisor->signal_all(SIGKILL, true);
  const auto end = Clock::now() + kLastWords;
  while (owners_.console->reading() && Clock::now() < end) poll_once(false, end);
  owners_.console->finish();
  print_cause(first_rank);
  // A reader such as a pager may take its time, so only a signal ends this loop.
  while (owners_.console->writing()) {
    poll_once(false);
    while (int number = owners_.signals->next())
      if (stops(number)) {
        stop_signal_ = number;
        return;
      }
  }
}

void Watch::print_cause(int first_rank) {
  const auto& cause = owners_.supervisor->cause();
  const auto ranks = owners_.supervisor->snapshot();
  for (const auto& rank : ranks)
    if (!rank.error_message.empty())
      owners_.console->say_in_log(rank.rank - first_rank, "muster: " + rank.error_message);
  for (const auto& line : other_errors(ranks, cause)) owners_.console->say(line);
  if (!cause) return;
  const auto& last_lines = owners_.console->tail(cause->rank - first_rank).lines();
  for (const auto& line : describe(*cause, owners_.supervisor->layout(), &last_lines)) owners_.console->say(line);
}

}  // namespace muster::launcher
