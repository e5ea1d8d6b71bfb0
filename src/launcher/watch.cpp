#include "watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStopTime{30000};   // for ranks that were told to stop: they may be saving their state
constexpr milliseconds kLastWords{200};    // for output still on its way after all ranks have ended

bool stops(int number) { return number == SIGINT || number == SIGTERM || number == SIGHUP; }

}  // namespace

RelayedSignals::RelayedSignals() {
  sigset_t relayed;
  sigemptyset(&relayed);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT}) sigaddset(&relayed, number);
  sigprocmask(SIG_BLOCK, &relayed, &before_);
  fd_ = Descriptor(signalfd(-1, &relayed, SFD_CLOEXEC | SFD_NONBLOCK));
}

RelayedSignals::~RelayedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

int RelayedSignals::next() const {
  signalfd_siginfo info{};
  return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

int Watch::run() {
  for (look(); !all_ended(); look()) {
    poll_once(true);
    handle_signals();
    check_deadline();
  }
  drain();
  return exit_code();
}

bool Watch::all_ended() const {
  return std::all_of(parts_.children->begin(), parts_.children->end(), [](const Child& child) { return child.end().has_value(); });
}

void Watch::poll_once(bool processes) {
  std::vector<pollfd> entries{{parts_.signals->fd(), POLLIN, 0}};
  for (auto& child : *parts_.children)
    if (processes && !child.end()) entries.push_back({child.pid_fd(), POLLIN, 0});
  parts_.console->add_to(entries);
  if (poll(entries.data(), entries.size(), poll_timeout()) > 0) parts_.console->handle(entries);
}

int Watch::poll_timeout() const {
  if (!deadline_) return -1;
  auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now()).count();
  return static_cast<int>(std::max<milliseconds::rep>(left, 0));
}

/// Every end is seen here and nowhere else, so none can slip in between what is judged and what is polled.
void Watch::look() {
  for (auto& child : *parts_.children) child.look();
  if (cause_ || stop_signal_) return;
  std::vector<FirstCause> failed;
  auto after = std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
  for (size_t i = 0; i < parts_.children->size(); ++i) {
    const auto& child = (*parts_.children)[i];
    const auto& end = child.end();
    if (end && end->failed()) failed.push_back({after, *end, static_cast<int>(i), child.rank()});
  }
  if (failed.empty()) return;
  cause_ = choose_cause(failed);
  signal_all(SIGTERM, true);
  end_within(parts_.grace);
}

void Watch::end_within(milliseconds grace) { deadline_ = Clock::now() + grace; }

void Watch::check_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  signal_all(SIGKILL, true);
  end_within(milliseconds(100));
}

void Watch::signal_all(int number, bool group) {
  for (auto& child : *parts_.children) child.signal(number, group);
}

void Watch::handle_signals() {
  while (int number = parts_.signals->next()) relay(number);
}

void Watch::relay(int number) {
  if (number == SIGTSTP) return suspend();
  if (number == SIGWINCH) parts_.console->resize();
  if (stops(number) && (stop_signal_ || cause_)) {
    // Asked a second time: no more waiting.
    signal_all(SIGKILL, true);
    return;
  }
  // What stops a job concerns all that its ranks have started, as a terminal would have it; other signals the ranks only.
  signal_all(number, stops(number) || number == SIGCONT);
  if (!stops(number)) return;
  stop_signal_ = number;
  end_within(kStopTime);
}

void Watch::suspend() {
  signal_all(SIGTSTP, true);
  raise(SIGSTOP);
  signal_all(SIGCONT, true);
}

void Watch::drain() {
  parts_.console->read_all();
  // What ranks have left running in their groups may hold their pipes open.
  signal_all(SIGKILL, true);
  end_within(kLastWords);
  while (parts_.console->reading() && Clock::now() < *deadline_) poll_once(false);
  parts_.console->finish();
  if (cause_)
    for (const auto& line : describe(*cause_, &parts_.console->tail(cause_->local_rank).lines())) parts_.console->say(line);
  // A reader may take its time (a pager), so only a signal ends this.
  deadline_.reset();
  while (parts_.console->writing()) {
    poll_once(false);
    while (int number = parts_.signals->next())
      if (stops(number)) return;
  }
}

int Watch::exit_code() const {
  bool failed = std::any_of(parts_.children->begin(), parts_.children->end(), [](Child& child) { return child.end()->failed(); });
  if (!failed) return 0;
  return cause_ ? cause_->end.exit_code() : 128 + stop_signal_;
}

}  // namespace muster::launcher
