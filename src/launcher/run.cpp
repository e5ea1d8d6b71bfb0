#include "muster/launcher/detail/run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "child.h"
#include "console.h"
#include "muster/base/detail/log.h"
#include "muster/base/detail/options_line.h"
#include "muster/base/error.h"
#include "muster/cluster/detail/listening_socket.h"
#include "muster/launcher/detail/devices.h"
#include "muster/launcher/detail/option_tables.h"
#include "nodes.h"
#include "rank_environment.h"
#include "reaper.h"
#include "rendezvous/node_rounds.h"
#include "restarts.h"
#include "supervisor.h"
#include "watch.h"

namespace muster {
namespace launcher {
namespace {

/// The launcher itself uses the accelerator, too.
std::string options_for_ranks(const RunOptions& options) {
  if (options.accelerator.empty()) return options.options;
  auto texts = options::read_line(options.options, "option 'options' of the launcher");
  texts["accelerator"].text = options.accelerator;
  return options::write_line(texts);
}

void check_placement(const RunOptions& options) {
  if (options.max_restarts < 0) throw ConfigError("MU036", "max restarts must not be negative");
  const auto& [least, most] = options.nodes;
  if (least < 1 || least > most)
    throw ConfigError("MU036", log::str("nodes is ", options::Value<NodeRange>::write(options.nodes),
                                        "; a number of at least 1 is wanted, or two of which the first is not above "
                                        "the second"));
  // Where launchers know each other, the number only orders the nodes: any of them may wait for its turn.
  const int node_rank = has_rendezvous(options) ? std::min(options.node_rank, most - 1) : options.node_rank;
  check_nodes({options.main_address, options.main_port, node_rank, most});
}

Job plan_job(const RunOptions& options, const Environment& variables) {
  check_placement(options);
  if (options.threads < 0) throw ConfigError("MU036", "threads must not be negative");
  auto choice = choose_devices({options.accelerator, options.devices, count_accelerators(variables)});
  Job job;
  job.cores = count_cores();
  job.device_indices = choice.indices;
  job.node_rank = options.node_rank;
  job.nodes = options.nodes.most;
  job.options = options_for_ranks(options);
  job.processes = choice.count;
  job.given_secret = !options.secret_file.empty() || cluster::read_secret(variables).is_given();
  job.secret = secret_of_job(options.secret_file, variables, job.nodes);
  check_rendezvous(options, job.secret);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  job.start = std::chrono::floor<std::chrono::milliseconds>(now).count();
  job.threads = options.threads;
  place_store(options.main_address, options.main_port, job);
  return job;
}

/// Nothing that is left of an earlier round can join the next one.
void renew_rendezvous(const RunOptions& options, Job& job) {
  place_store(options.main_address, options.main_port, job);
  if (!job.given_secret) job.secret = cluster::make_secret();
}

/// stdin for the ranks: nothing. A terminal would stop ranks that read it, since each is in a process group of its own.
Descriptor no_input() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void start_ranks(const Job& job, Program program, const cluster::ListeningSocket& store, const RelayedSignals& signals,
                 const Reaper& reaper, Console& console, std::vector<Child>& children) {
  auto nothing = no_input();
  auto parent = Environment::of_process();
  children.reserve(static_cast<size_t>(job.processes));
  for (int local_rank = 0; local_rank < job.processes; ++local_rank) {
    auto ends = console.open_rank(job.rank_of(local_rank));
    bool gets_input = local_rank == 0 && !isatty(STDIN_FILENO);
    bool gets_store = job.rank_of(local_rank) == 0;
    program.environment = rank_environment(parent, job, local_rank);
    SpawnAttributes attributes;
    attributes.error_fd = ends.error.get();
    attributes.input_fd = gets_input ? -1 : nothing.get();
    attributes.keep_fd = gets_store ? store.fd() : -1;
    attributes.output_fd = ends.output.get();
    attributes.signal_mask = &signals.mask_before();
    children.emplace_back(job.rank_of(local_rank), program, attributes);
    reaper.watch(children.back().pid());
    // The last start may have ended within a line.
    if (job.restarts > 0) console.say_in_log(local_rank, log::str("\nmuster: restart ", job.restarts));
  }
}

/// The socket of the round's store; on several nodes that know each other it was made before they were told its port.
cluster::ListeningSocket store_of_round(Job& job, NodeAgent* agent) {
  if (!agent) return open_store(job);
  auto store = agent->take_store();
  if (job.world_size() == 1) return cluster::ListeningSocket();
  job.store_fd = store.fd();
  return store;
}

/// Starts all ranks once, and returns when the last has ended. Whatever the round needed ends with it.
Round run_round(const RunOptions& options, Job job, const Program& program, const RelayedSignals& signals,
                NodeAgent* agent) {
  Reaper reaper;
  Console console({.append = job.restarts > 0, .log_dir = options.log_dir, .prefix = options.prefix});
  auto store = store_of_round(job, agent);
  std::vector<Child> children;
  start_ranks(job, program, store, signals, reaper, console, children);
  // Rank 0 alone has the socket now: should it end, the others are refused instead of waiting.
  store = cluster::ListeningSocket();
  Supervisor supervisor({&children, options.grace, {job.nodes, job.processes}, {}});
  Watch watch({agent, &console, &signals, &supervisor});
  Round round;
  round.code = watch.run(children);
  round.stopped = watch.stopped();
  if (const auto& cause = supervisor.cause(); cause && !watch.stopped())
    round.failure = Failure{.after = cause->after, .made_steps = supervisor.made_steps(), .what = one_line(*cause)};
  return round;
}

void say(const std::string& line) { std::fprintf(stderr, "muster: %s\n", line.c_str()); }

/// Runs rounds until one succeeds or is the last; returns the exit code of the job.
int run_rounds(const RunOptions& options, Job job, const Program& program, Restarts& restarts) {
  const RelayedSignals signals;
  for (;;) {
    const Round round = run_round(options, job, program, signals, nullptr);
    const auto wait = round.failure ? restarts.next(*round.failure) : std::nullopt;
    if (!wait) return round.code;
    say(restarts.announcement());
    if (const int stopped_by = signals.wait(*wait)) return 128 + stopped_by;
    job.restarts = restarts.count();
    renew_rendezvous(options, job);
  }
}

int run_on_nodes(const RunOptions& options, const Job& plan, const Program& program) {
  const RelayedSignals signals;
  return run_rounds_of_nodes(options, plan, program.arguments, signals, [&](const Job& job, NodeAgent& agent) {
    return run_round(options, job, program, signals, &agent);
  });
}

}  // namespace
}  // namespace launcher

int run(const RunOptions& options, const std::vector<std::string>& command) {
  using namespace launcher;
  auto variables = Environment::of_process();
  if (command.empty()) throw ConfigError("MU031", "no program is given: muster run [options] PROGRAM ARGUMENTS...");
  Program program{command, {}, find_program(command.front(), variables)};
  std::signal(SIGPIPE, SIG_IGN);
  if (has_rendezvous(options)) return run_on_nodes(options, plan_job(options, variables), program);
  Restarts restarts(options.max_restarts);
  const auto say_causes = [&] {
    for (const auto& line : restarts.summary()) say(line);
  };
  try {
    const int code = run_rounds(options, plan_job(options, variables), program, restarts);
    say_causes();
    return code;
  } catch (const Error&) {
    say_causes();
    throw;
  }
}

}  // namespace muster
