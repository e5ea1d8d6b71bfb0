#include "muster/launcher/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "base/deadline.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/variables.h"
#include "cluster/report.h"
#include "launcher/child.h"
#include "launcher/devices.h"
#include "launcher/job.h"
#include "launcher/supervisor.h"
#include "muster/base/error.h"

namespace muster {
namespace launcher {
namespace {

/// The other local ranks of a program that became local rank 0 through launch(), and the thread that starts them and
/// drives their supervisor. That thread must start them, since ranks die with the thread that started them.
/// Thread safety: finish() and other_rank_is_root_cause() from any thread, finish() once.
class LocalRanks {
 public:
  /// Starts local ranks 1 and up. Throws: LaunchError (MU034).
  LocalRanks(const Job& job, const LaunchOptions& options);
  ~LocalRanks();

  /// Called when this process ends with `status`: waits for the other ranks (or ends them, if status is not 0), and
  /// returns the exit code of the job. Bounded by the options' time-outs.
  int finish(int status);
  /// Information about an uncaught exception.
  struct Uncaught {
    bool is_error = false;  ///< true for a muster::Error, which ends the process with cluster::kUncaughtError
    std::string message;
  };
  /// Called when the exception ends this process: returns whether another rank is the root cause. If so, that cause is
  /// printed, then the exception, and the process ends soon. Bounded by the options' time-outs.
  bool other_rank_is_root_cause(const Uncaught& exception);
  /// The page for this process's reports.
  const cluster::Report& report() const noexcept { return report_; }

 private:
  using Clock = Supervisor::Clock;

  void start(const Job& job, const sigset_t& signal_mask);
  void watch();
  std::optional<ExitStatus> own_end();
  void poll_until(Clock::time_point deadline = Clock::time_point::max());
  void end_process();

  base::Condition changed_;
  std::vector<Child> children_;     // used only by the thread
  std::optional<RootCause> cause_;  // written by the thread, with the mutex; read by others with it
  base::Mutex mutex_;
  bool finishing_ MUSTER_GUARDED_BY(mutex_) = false;  // finish() was called
  LaunchOptions options_;
  std::optional<ExitStatus> own_end_ MUSTER_GUARDED_BY(mutex_);
  int own_rank_;
  cluster::Report report_ = cluster::Report::make();
  std::optional<Supervisor> supervisor_;  // used only by the thread
  Descriptor wake_;
  bool printed_root_cause_ MUSTER_GUARDED_BY(mutex_) = false;  // other_rank_is_root_cause() has printed its message
  std::thread thread_;                                         // last member, since it uses all others
};

/// This program with its arguments. If its file was replaced, /proc/self/exe itself is used.
Program this_program() {
  Program program;
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');) program.arguments.push_back(argument);
  std::error_code missing;
  program.path = std::filesystem::read_symlink("/proc/self/exe", missing);
  if (access(program.path.c_str(), X_OK) != 0) program.path = "/proc/self/exe";
  return program;
}

LocalRanks::LocalRanks(const Job& job, const LaunchOptions& options)
    : options_(options), own_rank_(job.rank_of(0)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  cluster::promise_to_print(report_);
  // The new thread must not handle signals; the ranks get the previous mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::promise<void> start_done;
  auto started = start_done.get_future();
  thread_ = std::thread([this, job, before, done = std::move(start_done)]() mutable {
    try {
      start(job, before);
    } catch (...) {
      children_.clear();
      return done.set_exception(std::current_exception());
    }
    done.set_value();
    watch();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  try {
    started.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

void LocalRanks::start(const Job& job, const sigset_t& signal_mask) {
  Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto program = this_program();
  const auto parent = Environment::of_process();
  for (int local_rank = 1; local_rank < job.processes; ++local_rank)
    children_.emplace_back(RankStart{.environment = rank_environment(parent, job, local_rank),
                                     .input_fd = nothing.get(),
                                     .own_group = false,
                                     .rank = job.rank_of(local_rank),
                                     .signal_mask = &signal_mask},
                           program);
  supervisor_.emplace(
      Supervisor::Setup{&children_, options_.grace, {job.nodes, job.processes}, Supervisor::Own{own_rank_, report_}});
}

LocalRanks::~LocalRanks() {
  if (thread_.joinable()) finish(1);
}

int LocalRanks::finish(int status) {
  {
    base::Lock lock(mutex_);
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
  base::Lock lock(mutex_);
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
  base::Lock lock(mutex_);
  return own_end_;
}

void LocalRanks::watch() {
  while (!cause_ && !own_end()) poll_until();
  // After this process's own failure, the root cause is found within `grace`.
  while (!cause_ && own_end()->failed()) poll_until();
  const auto deadline = Clock::now() + options_.exit_timeout;
  while (!cause_ && !supervisor_->all_ended() && Clock::now() < deadline) poll_until(deadline);
  if (!cause_ && !supervisor_->all_ended())
    log::warning("rank ", own_rank_, " has ended, but other ranks still ran after ", options_.exit_timeout.count(),
                 " ms and are ended now");
  if (!cause_) {
    supervisor_->stop(options_.grace);
    supervisor_->signal_all(SIGTERM, false);
  }
  while (!supervisor_->all_ended()) poll_until();
  for (const auto& line : other_errors(supervisor_->snapshot(), cause_)) std::fprintf(stderr, "%s\n", line.c_str());
  supervisor_.reset();
  children_.clear();
  end_process();
}

void LocalRanks::poll_until(Clock::time_point deadline) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  supervisor_->add_to(entries);
  poll(entries.data(), entries.size(), milliseconds_until(std::min(deadline, supervisor_->due())));
  eventfd_t woken = 0;
  eventfd_read(wake_.get(), &woken);
  if (auto end = own_end()) supervisor_->own_ends(*end);
  supervisor_->poll();
  if (cause_ || !supervisor_->cause()) return;
  for (const auto& line : describe(*supervisor_->cause(), supervisor_->layout(), nullptr))
    std::fprintf(stderr, "%s\n", line.c_str());
  {
    base::Lock lock(mutex_);
    cause_ = supervisor_->cause();
  }
  changed_.notify_all();
}

/// Ends this process after the failure of another rank, unless it ends by itself within the grace time of all ranks.
void LocalRanks::end_process() {
  base::Lock lock(mutex_);
  if (!cause_ || (own_end_ && cause_->rank == own_rank_)) return;
  changed_.wait_for(lock, options_.grace,
                    [this]() MUSTER_REQUIRES(mutex_) { return finishing_ || printed_root_cause_; });
  if (finishing_) return;
  cluster::flush_stdio();
  _exit(cause_->end.exit_code());
}

/// The ranks started by this process. Global, since the handlers for exit and uncaught exceptions need them.
std::atomic<LocalRanks*> ranks_of_process{nullptr};
std::terminate_handler terminate_before = nullptr;

void finish_at_exit(int status, void*) {
  LocalRanks* ranks = ranks_of_process.exchange(nullptr);
  if (!ranks) return;
  int code = ranks->finish(status);
  delete ranks;
  if (code == status) return;
  std::fflush(nullptr);
  _exit(code);
}

LocalRanks::Uncaught uncaught_exception() {
  const auto current = std::current_exception();
  if (const auto message = cluster::error_message_of(current)) return {true, *message};
  if (current) try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      return {false, error.what()};
    } catch (...) {}
  return {};
}

/// Handles an uncaught exception. It may be a consequence of another rank's end, whose cause and exit code then apply.
[[noreturn]] void finish_at_terminate() {
  LocalRanks* ranks = ranks_of_process.load();
  const auto exception = uncaught_exception();
  // The thread that watches the ranks ends the process.
  if (ranks && ranks->other_rank_is_root_cause(exception))
    for (;;) pause();
  if (ranks && exception.is_error) {
    finish_at_exit(cluster::kUncaughtError, nullptr);
    cluster::end_by_error();
  }
  if (terminate_before) terminate_before();
  std::abort();
}

/// Throws: ConfigError (MU032) if the launcher contradicts a request of the program. Addresses are up to the launcher.
void check_agreement(const ClusterEnvironment& cluster, const LaunchOptions& options) {
  if (options.processes > 0 && options.processes != cluster.local_world_size)
    throw ConfigError("MU032",
                      log::str("the program asks for ", options.processes, " ranks on this node, but its launcher (",
                               to_string(cluster.launcher), ") started ", cluster.local_world_size,
                               "; change one of them, or ask for 0 (as many as there are)"));
  if (options.nodes > 1 && options.nodes != cluster.nodes)
    throw ConfigError("MU032", log::str("the program asks for ", options.nodes, " nodes, but its launcher (",
                                        to_string(cluster.launcher), ") uses ", cluster.nodes));
}

Job plan_job(const LaunchOptions& options, const Environment& variables) {
  check_nodes({.main_address = options.main_address,
               .main_port = options.main_port,
               .node_rank = options.node_rank,
               .nodes = options.nodes});
  Job job;
  job.cores = count_cores();
  job.node_rank = options.node_rank;
  job.nodes = options.nodes;
  job.processes = std::max(options.processes, 1);
  job.secret = secret_of_job("", variables, options.nodes);
  job.threads = options.threads;
  place_store(options.main_address, options.main_port, job);
  return job;
}

void become_rank_zero(const Environment& before, const Job& job, const cluster::Report& report) {
  for (const auto& [name, value] : before.variables())
    if (name.starts_with("TORCHELASTIC_")) unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  auto after = rank_environment(before, job, 0);
  if (report.descriptor() >= 0) after.set(cluster::kReportFd, std::to_string(report.descriptor()));
  for (const auto& [name, value] : after.variables())
    setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace
}  // namespace launcher

ClusterEnvironment launch(const LaunchOptions& options) {
  using namespace launcher;
  auto before = Environment::of_process();
  ClusterEnvironment cluster = read_cluster_environment(before, options.cluster_reader);
  if (options.processes < 0 || options.threads < 0)
    throw ConfigError("MU036", "processes and threads must not be negative");
  if (cluster.launcher != LauncherKind::none) {
    check_agreement(cluster, options);
    return cluster;
  }
  Job job = plan_job(options, before);
  if (job.world_size() == 1) return cluster;
  auto store = open_store(job);
  cluster::Report report;
  if (job.processes > 1) {
    auto* ranks = new LocalRanks(job, options);
    ranks_of_process = ranks;
    report = ranks->report();
    terminate_before = std::set_terminate(finish_at_terminate);
    on_exit(finish_at_exit, nullptr);
  }
  become_rank_zero(before, job, report);
  // From here on the process that runs the store owns the socket.
  store.release();
  return read_cluster_environment();
}

ClusterEnvironment launch(int processes) { return launch({.processes = processes}); }

}  // namespace muster
