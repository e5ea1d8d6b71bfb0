#include "muster/launcher/launch.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/log.h"
#include "base/variables.h"
#include "cluster/report.h"
#include "launcher/devices.h"
#include "launcher/job.h"
#include "local_ranks.h"
#include "muster/base/error.h"

namespace muster {
namespace launcher {
namespace {

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
  check_nodes({options.main_address, options.main_port, options.node_rank, options.nodes});
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

ClusterEnvironment launch(int processes) {
  LaunchOptions options;
  options.processes = processes;
  return launch(options);
}

}  // namespace muster
