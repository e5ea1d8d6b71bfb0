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

#include "base/log.h"
#include "cluster/report.h"

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

/// This program with its arguments. If its file was replaced, /proc/self/exe itself is used.
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

}  // namespace

LocalRanks::LocalRanks(const Job& job, const LaunchOptions& options)
    : options_(options), own_rank_(job.rank_of(0)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  cluster::promise_to_print(report_);
  // The new thread must not handle signals; the ranks get the previous mask.
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
  SpawnAttributes attributes;
  attributes.input_fd = nothing.get();
  attributes.own_group = false;
  attributes.signal_mask = &signal_mask;
  auto program = this_program();
  auto parent = Environment::of_process();
  for (int local_rank = 1; local_rank < job.processes; ++local_rank) {
    program.environment = rank_environment(parent, job, local_rank);
    children_.emplace_back(job.rank_of(local_rank), program, attributes);
  }
  supervisor_.emplace(
      Supervisor::Setup{&children_, options_.grace, {job.nodes, job.processes}, Supervisor::Own{own_rank_, report_}});
}

LocalRanks::~LocalRanks() {
  if (thread_.joinable()) finish(1);
}

int LocalRanks::finish(int status) {
  {
    std::lock_guard lock(mutex_);
    finishing_ = true;
    own_end_ = ExitStatus{status, 0};
  }
  changed_.notify_all();
  eventfd_write(wake_.get(), 1);
  thread_.join();
  return cause_ ? cause_->end.exit_code() : status;
}

bool LocalRanks::other_rank_is_root_cause(const Uncaught& exception) {
  if (exception.is_error && !cluster::write_error_message(report_, exception.message))
    std::fprintf(stderr, "muster: %s\n", exception.message.c_str());
  std::unique_lock lock(mutex_);
  if (!own_end_) own_end_ = exception.is_error ? ExitStatus{cluster::kUncaughtError, 0} : ExitStatus{0, SIGABRT};
  eventfd_write(wake_.get(), 1);
  changed_.wait(lock, [this] { return cause_.has_value(); });
  if (cause_->rank == own_rank_) return false;
  if (!exception.message.empty() && !exception.is_error)
    std::fprintf(stderr, "muster: rank %d then ended by an exception: %s\n", own_rank_, exception.message.c_str());
  printed_root_cause_ = true;
  changed_.notify_all();
  return true;
}

std::optional<ExitStatus> LocalRanks::own_end() {
  std::lock_guard lock(mutex_);
  return own_end_;
}

void LocalRanks::watch() {
  while (!cause_ && !own_end()) poll_until(std::nullopt);
  // After this process's own failure, the root cause is found within `grace`.
  while (!cause_ && own_end()->failed()) poll_until(std::nullopt);
  if (!cause_) await_others();
  end_others();
  end_process();
}

void LocalRanks::poll_until(std::optional<Clock::time_point> deadline) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  supervisor_->add_to(entries);
  int timeout = supervisor_->poll_timeout();
  if (deadline) {
    auto left = static_cast<int>(
        std::max<milliseconds::rep>(0, std::chrono::ceil<milliseconds>(*deadline - Clock::now()).count()));
    timeout = timeout < 0 ? left : std::min(timeout, left);
  }
  poll(entries.data(), entries.size(), timeout);
  eventfd_t woken = 0;
  eventfd_read(wake_.get(), &woken);
  if (auto end = own_end()) supervisor_->own_ends(*end);
  supervisor_->poll();
  if (!cause_ && supervisor_->cause()) print_cause();
}

void LocalRanks::print_cause() {
  for (const auto& line : describe(*supervisor_->cause(), supervisor_->layout(), nullptr))
    std::fprintf(stderr, "%s\n", line.c_str());
  {
    std::lock_guard lock(mutex_);
    cause_ = supervisor_->cause();
  }
  changed_.notify_all();
}

void LocalRanks::print_other_errors() {
  for (const auto& line : other_errors(supervisor_->snapshot(), cause_)) std::fprintf(stderr, "%s\n", line.c_str());
}

void LocalRanks::await_others() {
  auto deadline = Clock::now() + options_.exit_timeout;
  while (!cause_ && !supervisor_->all_ended() && Clock::now() < deadline) poll_until(deadline);
  if (!cause_ && !supervisor_->all_ended())
    log::warning("rank ", own_rank_, " has ended, but other ranks still ran after ", options_.exit_timeout.count(),
                 " ms and are ended now");
}

void LocalRanks::end_others() {
  if (!cause_) {
    supervisor_->stop(options_.grace);
    supervisor_->signal_all(SIGTERM, false);
  }
  while (!supervisor_->all_ended()) poll_until(std::nullopt);
  print_other_errors();
  supervisor_.reset();
  children_.clear();
}

/// Ends this process after the failure of another rank, unless it ends by itself within the grace time of all ranks.
void LocalRanks::end_process() {
  std::unique_lock lock(mutex_);
  if (!cause_ || (own_end_ && cause_->rank == own_rank_)) return;
  changed_.wait_for(lock, options_.grace, [this] { return finishing_ || printed_root_cause_; });
  if (finishing_) return;
  cluster::flush_stdio();
  _exit(cause_->end.exit_code());
}

}  // namespace muster::launcher
