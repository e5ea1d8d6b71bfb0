#include "local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "muster/base/log.h"

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

// A rank's sockets close a moment before its end can be seen, so who hears of the one waits for the other.
constexpr milliseconds kMoment{150};

/// This program with its arguments. The link itself serves where the file was replaced since.
Program this_program() {
  Program program;
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');) program.arguments.push_back(argument);
  char path[4096];
  ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  program.path = size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
  if (access(program.path.c_str(), X_OK) != 0) program.path = "/proc/self/exe";
  return program;
}

/// What stdio holds back would be lost; a stream that somebody is writing to is left alone.
void flush(FILE* stream) {
  if (ftrylockfile(stream) != 0) return;
  fflush_unlocked(stream);
  funlockfile(stream);
}

}  // namespace

LocalRanks::LocalRanks(const Job& job, const LaunchOptions& options) : options_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Signals are the program's affair, not this thread's; the ranks get the mask of before.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this, job, before] {
    try {
      start(job, before);
    } catch (...) {
      children_.clear();
      start_error_ = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    if (!start_error_) watch();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_; });
  if (!start_error_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(start_error_);
}

void LocalRanks::start(const Job& job, const sigset_t& signal_mask) {
  Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Placement placement;
  placement.input_fd = nothing.get();
  placement.own_group = false;
  placement.signal_mask = &signal_mask;
  auto program = this_program();
  auto parent = Environment::of_process();
  for (int local_rank = 1; local_rank < job.processes; ++local_rank) {
    program.environment = rank_environment(parent, job, local_rank);
    children_.emplace_back(job.rank_of(local_rank), program, placement);
  }
}

LocalRanks::~LocalRanks() {
  if (thread_.joinable()) finish(1);
}

int LocalRanks::finish(int status) {
  {
    std::lock_guard lock(mutex_);
    finish_status_ = status;
  }
  changed_.notify_all();
  eventfd_write(wake_.get(), 1);
  thread_.join();
  return cause_ ? cause_->end.exit_code() : status;
}

bool LocalRanks::await_failure() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kMoment, [this] { return cause_.has_value(); });
}

void LocalRanks::watch() {
  auto finishing = [this] {
    std::lock_guard lock(mutex_);
    return finish_status_.has_value();
  };
  while (!cause_ && !finishing()) poll_until(std::nullopt);
  if (cause_) return fail();
  if (*finish_status_ == 0) await_others();
  if (!cause_ && !all_ended()) poll_until(Clock::now() + kMoment);
  end_others();
}

bool LocalRanks::all_ended() const {
  return std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.end().has_value(); });
}

void LocalRanks::poll_until(std::optional<Clock::time_point> deadline) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  for (auto& child : children_)
    if (!child.end()) entries.push_back({child.pid_fd(), POLLIN, 0});
  int timeout = -1;
  if (deadline) timeout = static_cast<int>(std::max<milliseconds::rep>(0, std::chrono::ceil<milliseconds>(*deadline - Clock::now()).count()));
  poll(entries.data(), entries.size(), timeout);
  eventfd_t told = 0;
  eventfd_read(wake_.get(), &told);
  look();
}

/// Every end is seen here and nowhere else, so none can slip in between what is judged and what is polled.
void LocalRanks::look() {
  for (auto& child : children_) child.look();
  if (cause_ || ending_) return;
  std::vector<FirstCause> failed;
  auto after = std::chrono::duration_cast<milliseconds>(Clock::now() - start_);
  for (size_t i = 0; i < children_.size(); ++i) {
    const auto& end = children_[i].end();
    if (end && end->failed()) failed.push_back({after, *end, static_cast<int>(i) + 1, children_[i].rank()});
  }
  if (failed.empty()) return;
  auto cause = choose_cause(failed);
  for (const auto& line : describe(cause, nullptr)) std::fprintf(stderr, "%s\n", line.c_str());
  {
    std::lock_guard lock(mutex_);
    cause_ = cause;
  }
  changed_.notify_all();
}

/// A rank has failed while the program runs: it gets as long as the other ranks to come to its own end.
void LocalRanks::fail() {
  auto deadline = Clock::now() + options_.grace;
  end_others();
  auto finishing = [this] { return finish_status_.has_value(); };
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_until(lock, deadline, finishing)) return;
  }
  flush(stdout);
  flush(stderr);
  _exit(cause_->end.exit_code());
}

void LocalRanks::await_others() {
  auto deadline = Clock::now() + options_.exit_timeout;
  while (!cause_ && !all_ended() && Clock::now() < deadline) poll_until(deadline);
  if (!cause_ && !all_ended())
    log::warning("rank 0 has ended, but other ranks still ran after ", options_.exit_timeout.count(), " ms and are ended now");
}

void LocalRanks::end_others() {
  ending_ = true;
  auto deadline = Clock::now() + options_.grace;
  for (auto& child : children_) child.signal(SIGTERM, false);
  while (!all_ended() && Clock::now() < deadline) poll_until(deadline);
  for (auto& child : children_) child.signal(SIGKILL, false);
  children_.clear();
}

}  // namespace muster::launcher
