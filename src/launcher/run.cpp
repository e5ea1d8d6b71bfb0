#include "launcher/run.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/deadline.h"
#include "base/log.h"
#include "base/options_text.h"
#include "base/text.h"
#include "child.h"
#include "cluster/listening_socket.h"
#include "cluster/secret.h"
#include "console.h"
#include "fork_server.h"
#include "launcher/devices.h"
#include "launcher/job.h"
#include "launcher/rendezvous/node_agent.h"
#include "launcher/restarts.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "rendezvous/rendezvous_probe.h"
#include "supervisor.h"
#include "watch.h"

namespace muster::launcher {
namespace {

using log::str;

constexpr std::size_t kMostOfCommand = 200;  // limit in characters, for messages

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

/// A keyed digest, which shows that two commands differ without revealing them.
std::string digest_of(const cluster::Secret& secret, const std::vector<std::string>& command) {
  std::string words;
  for (const auto& word : command) words.append(word) += '\0';
  const auto signature = cluster::sign(secret, {"muster command", words});
  return hex_text({reinterpret_cast<const char*>(signature.data()), signature.size()});
}

NodeAgent::Setup agent_setup(const RunOptions& options, const Job& plan, const std::vector<std::string>& command) {
  auto line = joined_by(" ", command);
  if (line.size() > kMostOfCommand) line = line.substr(0, kMostOfCommand) + "...";
  return {.entry = {.host = host_name(),
                    .node_rank = options.node_rank,
                    .config = {.command = std::move(line),
                               .digest = digest_of(plan.secret, command),
                               .max_restarts = options.max_restarts,
                               .nodes = options::Value<NodeRange>::write(options.nodes),
                               .processes = plan.processes}},
          .heartbeat_timeout = options.heartbeat_timeout,
          .join_timeout = options.join_timeout,
          .last_call_timeout = options.last_call_timeout,
          .nodes = options.nodes,
          .main_address = {plan.main_address, plan.main_port},
          .secret = plan.secret,
          .start = plan.start};
}

Job job_of(Job job, const StartRound& round) {
  job.main_address = round.main_address;
  job.main_port = round.main_port;
  job.name = round.name;
  job.node_rank = round.node_rank;
  job.nodes = round.nodes;
  job.restarts = round.restarts;
  job.start = round.start;
  return job;
}

void check_positive(const char* name, std::chrono::milliseconds time) {
  if (time.count() <= 0) throw ConfigError("MU036", str(name, " must be longer than nothing"));
}

/// Whether the launchers of the nodes meet at a rendezvous, so that rounds begin and end on all of them at once.
bool has_rendezvous(const RunOptions& options) {
  const auto& [least, most] = options.nodes;
  return most > 1 && (options.max_restarts > 0 || least < most);
}

/// Throws: ConfigError (MU036) for time-outs that are not positive, (MU510) if the job has no secret.
void check_rendezvous(const RunOptions& options, const cluster::Secret& secret) {
  if (!has_rendezvous(options)) return;
  check_positive("heartbeat timeout", options.heartbeat_timeout);
  check_positive("join timeout", options.join_timeout);
  if (options.last_call_timeout.count() < 0) throw ConfigError("MU036", "last call timeout must not be negative");
  if (!secret.is_given())
    throw ConfigError("MU510",
                      "the launchers of several nodes begin rounds together (--max-restarts, or a range of --nodes), "
                      "but the job has no secret by which they know each other; give all nodes the same one: openssl "
                      "rand -hex 32 > job.secret; chmod 600 job.secret; --secret-file job.secret");
}

/// Runs the rounds that the rendezvous begins. `run_round` starts this node's ranks and returns when the last has
/// ended. Returns the exit code of the launcher. `plan`: the plan of this node. `command`: the program and its
/// arguments.
/// Throws: as NodeAgent and `run_round`.
int run_rounds_of_nodes(const RunOptions& options, const Job& plan, const std::vector<std::string>& command,
                        const RelayedSignals& signals, const std::function<Round(const Job&, NodeAgent&)>& run_round) {
  NodeAgent agent(agent_setup(options, plan, command), signals);
  try {
    for (;;) {
      const auto next = agent.await_round();
      if (const auto* code = std::get_if<int>(&next)) return *code;
      const auto job = job_of(plan, std::get<StartRound>(next));
      std::fprintf(stderr, "muster: this is node %d of %d in this round\n", job.node_rank, job.nodes);
      const auto round = run_round(job, agent);
      if (!round.stopped) continue;
      agent.leave("its launcher was stopped by a signal");
      return round.code;
    }
  } catch (const Error& error) {
    agent.leave(error.what());
    throw;
  }
}

}  // namespace
}  // namespace muster::launcher

namespace muster {

namespace launcher {
namespace {

/// The options of the program, with the launcher's accelerator, which both use.
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
  // With a rendezvous the number only orders the nodes, and any node may wait for its turn.
  const int node_rank = has_rendezvous(options) ? std::min(options.node_rank, most - 1) : options.node_rank;
  check_nodes({options.main_address, options.main_port, node_rank, most});
}

Job plan_job(const RunOptions& options, const Environment& variables) {
  check_placement(options);
  if (options.threads < 0) throw ConfigError("MU036", "threads must not be negative");
  const DeviceRequest request{options.accelerator, options.devices, count_accelerators(variables),
                              options.devices_place};
  auto choice = choose_devices(request);
  Job job;
  job.cores = count_cores();
  job.device_indices = choice.indices;
  job.node_rank = options.node_rank;
  job.nodes = options.nodes.max;
  job.options = options_for_ranks(options);
  job.processes = choice.count;
  job.given_secret = !options.secret_file.empty() || cluster::read_secret(variables).is_given();
  job.secret = secret_of_job(options.secret_file, variables, job.nodes);
  check_rendezvous(options, job.secret);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  job.start = std::chrono::floor<std::chrono::milliseconds>(now).count();
  job.threads = options.threads;
  job.visible_devices = devices_of_ranks(request, choice, variables);
  place_store(options.main_address, options.main_port, job);
  return job;
}

/// Takes a new rendezvous and secret, so that leftovers of an earlier round cannot join the next one.
void renew_rendezvous(const RunOptions& options, Job& job) {
  place_store(options.main_address, options.main_port, job);
  if (!job.given_secret) job.secret = cluster::make_secret();
}

/// An empty stdin for the ranks. A terminal would stop ranks that read it, since each leads its own process group.
Descriptor no_input() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

/// The ranks of a round, each with its streams. `ends` keeps these open until the ranks have them.
std::vector<RankStart> ranks_to_start(const Job& job, const cluster::ListeningSocket& store,
                                      const RelayedSignals& signals, Console& console, std::vector<Console::Ends>& ends,
                                      int nothing) {
  const auto parent = Environment::of_process();
  std::vector<RankStart> ranks;
  for (int local_rank = 0; local_rank < job.processes; ++local_rank) {
    const int rank = job.rank_of(local_rank);
    const bool gets_input = local_rank == 0 && !isatty(STDIN_FILENO);
    ends.push_back(console.open_rank(rank));
    SpawnAttributes attributes;
    attributes.error_fd = ends.back().error.get();
    attributes.input_fd = gets_input ? -1 : nothing;
    attributes.keep_fd = rank == 0 ? store.fd() : -1;
    attributes.output_fd = ends.back().output.get();
    attributes.signal_mask = &signals.mask_before();
    ranks.push_back({attributes, rank_environment(parent, job, local_rank), rank});
  }
  return ranks;
}

/// Adds to `children` one by one, so that none is left behind if the next cannot be started.
void spawn_ranks(Program program, const std::vector<RankStart>& ranks, std::vector<Child>& children) {
  children.reserve(ranks.size());
  for (const auto& rank : ranks) {
    program.environment = rank.environment;
    children.emplace_back(rank.rank, program, rank.attributes);
  }
}

void start_ranks(const Job& job, const Program& program, const cluster::ListeningSocket& store,
                 const RelayedSignals& signals, Console& console, NodeAgent* agent, std::optional<ForkServer>& forks,
                 std::vector<Child>& children) {
  const auto nothing = no_input();
  std::vector<Console::Ends> ends;
  const auto ranks = ranks_to_start(job, store, signals, console, ends, nothing.get());
  ForkServer::OnWait on_wait;
  if (agent)
    on_wait = [agent] {
      agent->attend();
      return std::chrono::milliseconds(std::clamp(milliseconds_until(agent->due()), 1, 100));
    };
  if (forks) children = forks->start(ranks, console, on_wait);
  if (children.empty()) spawn_ranks(program, ranks, children);
  // The previous round may have ended in the middle of a line.
  for (int local_rank = 0; job.restarts > 0 && local_rank < job.processes; ++local_rank)
    console.say_in_log(local_rank, log::str("\nmuster: restart ", job.restarts));
}

/// The socket of the round's store. With a rendezvous it already exists, since all nodes were told its port.
cluster::ListeningSocket store_of_round(Job& job, NodeAgent* agent) {
  if (!agent) return open_store(job);
  auto store = agent->take_store();
  if (job.world_size() == 1) return cluster::ListeningSocket();
  job.store_fd = store.fd();
  return store;
}

std::optional<ForkServer> fork_server(const RunOptions& options, const Job& job, const Program& program,
                                      const RelayedSignals& signals) {
  std::optional<ForkServer> forks;
  // A single rank that is started once would only lose time by a fork server.
  if (options.fork_ranks && (job.processes > 1 || options.max_restarts > 0)) forks.emplace(program, signals.fd());
  return forks;
}

/// Starts all ranks once, and returns when the last has ended. Releases everything that the round needed.
Round run_round(const RunOptions& options, Job job, const Program& program, const RelayedSignals& signals,
                NodeAgent* agent, std::optional<ForkServer>& forks) {
  Reaper reaper;
  Console console({.append = job.restarts > 0, .log_dir = options.log_dir, .prefix = options.prefix});
  auto store = store_of_round(job, agent);
  std::vector<Child> children;
  start_ranks(job, program, store, signals, console, agent, forks, children);
  for (const auto& child : children) reaper.watch(child.pid());
  // Only rank 0 has the socket now: if it ends, connections of the others are refused instead of waiting.
  store = cluster::ListeningSocket();
  Supervisor supervisor({&children, options.grace, {job.nodes, job.processes}, {}});
  std::optional<RendezvousProbe> probe;
  if (!agent && job.node_rank > 0) probe.emplace(MainAddress{job.main_address, job.main_port});
  Watch watch({agent, &console, probe ? &*probe : nullptr, &signals, &supervisor});
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
  auto forks = fork_server(options, job, program, signals);
  for (;;) {
    const Round round = run_round(options, job, program, signals, nullptr, forks);
    const auto wait = round.failure ? restarts.next(*round.failure) : std::nullopt;
    if (!wait) return round.code;
    say(restarts.announcement());
    if (const int stopped_by = signals.wait_until(Supervisor::Clock::now() + *wait)) return 128 + stopped_by;
    job.restarts = restarts.count();
    renew_rendezvous(options, job);
  }
}

int run_on_nodes(const RunOptions& options, const Job& plan, const Program& program) {
  const RelayedSignals signals;
  auto forks = fork_server(options, plan, program, signals);
  return run_rounds_of_nodes(options, plan, program.arguments, signals, [&](const Job& job, NodeAgent& agent) {
    return run_round(options, job, program, signals, &agent, forks);
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
