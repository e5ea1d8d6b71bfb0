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

namespace muster {
namespace launcher {
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

NodeSetup node_setup(const RunOptions& options, const Job& plan, const std::vector<std::string>& command) {
  auto line = joined_by(" ", command);
  if (line.size() > kMostOfCommand) line = line.substr(0, kMostOfCommand) + "...";
  const LaunchConfig config{.command = std::move(line),
                            .digest = digest_of(plan.secret, command),
                            .max_restarts = options.max_restarts,
                            .nodes = options::Value<NodeRange>::write(options.nodes),
                            .processes = plan.processes};
  return {{host_name(), options.node_rank, config}, plan, options};
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
    throw ConfigError("MU036", str("nodes is ", options::Value<NodeRange>::write(options.nodes),
                                   "; a number of at least 1 is wanted, or two of which the first is not above "
                                   "the second"));
  // With a rendezvous the number only orders the nodes, and any node may wait for its turn.
  const int node_rank = has_rendezvous(options) ? std::min(options.node_rank, most - 1) : options.node_rank;
  check_nodes(
      {.main_address = options.main_address, .main_port = options.main_port, .node_rank = node_rank, .nodes = most});
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

void say(const std::string& line) { std::fprintf(stderr, "muster: %s\n", line.c_str()); }

/// The rounds of a job on this node.
class Rounds {
 public:
  Rounds(const RunOptions& options, const Job& plan, const Program& program)
      : options_(options), plan_(plan), program_(program) {
    // A single rank that is started once would only lose time by a fork server.
    if (options.fork_ranks && (plan.processes > 1 || options.max_restarts > 0)) forks_.emplace(program, signals_.fd());
  }

  /// Runs rounds until one succeeds or is the last; returns the exit code of the job.
  int run(Restarts& restarts);
  /// Runs the rounds that the rendezvous of the nodes begins; returns the exit code of the launcher.
  /// Throws: as NodeAgent.
  int run_on_nodes();

 private:
  Round run_round(Job job, NodeAgent* agent);
  std::vector<Child> start_ranks(const Job& job, Console& console, NodeAgent* agent);

  RunOptions options_;
  Job plan_;
  Program program_;
  RelayedSignals signals_;
  std::optional<ForkServer> forks_;
};

int Rounds::run(Restarts& restarts) {
  for (auto job = plan_;;) {
    const Round round = run_round(job, nullptr);
    const auto wait = round.failure ? restarts.next(*round.failure) : std::nullopt;
    if (!wait) return round.code;
    say(restarts.announcement());
    if (const int stopped_by = signals_.wait_until(Supervisor::Clock::now() + *wait)) return 128 + stopped_by;
    job.restarts = restarts.count();
    // With a new rendezvous and secret, leftovers of an earlier round cannot join the next one.
    place_store(options_.main_address, options_.main_port, job);
    if (!job.given_secret) job.secret = cluster::make_secret();
  }
}

int Rounds::run_on_nodes() {
  NodeAgent agent(node_setup(options_, plan_, program_.arguments), signals_);
  try {
    for (auto job = plan_;;) {
      const auto next = agent.await_round();
      if (const auto* code = std::get_if<int>(&next)) return *code;
      static_cast<StartRound&>(job) = std::get<StartRound>(next);
      std::fprintf(stderr, "muster: this is node %d of %d in this round\n", job.node_rank, job.nodes);
      const auto round = run_round(job, &agent);
      if (!round.stopped) continue;
      agent.leave("its launcher was stopped by a signal");
      return round.code;
    }
  } catch (const Error& error) {
    agent.leave(error.what());
    throw;
  }
}

/// Starts all ranks once, and returns when the last has ended. Releases everything that the round needed.
Round Rounds::run_round(Job job, NodeAgent* agent) {
  Reaper reaper;
  Console console({.append = job.restarts > 0, .log_dir = options_.log_dir, .prefix = options_.prefix});
  // With a rendezvous of launchers the store's socket already exists, since all nodes were told its port.
  auto store = agent ? agent->take_store() : open_store(job);
  if (agent && job.world_size() > 1) job.store_fd = store.fd();
  auto children = start_ranks(job, console, agent);
  for (const auto& child : children) reaper.watch(child.pid());
  // Only rank 0 has the socket now: if it ends, connections of the others are refused instead of waiting.
  store = cluster::ListeningSocket();
  Supervisor supervisor({&children, options_.grace, {job.nodes, job.processes}, {}});
  std::optional<RendezvousProbe> probe;
  if (!agent && job.node_rank > 0) probe.emplace(MainAddress{job.main_address, job.main_port});
  Watch watch({agent, &console, probe ? &*probe : nullptr, &signals_, &supervisor});
  Round round;
  round.code = watch.run(children);
  round.stopped = watch.stopped();
  if (const auto& cause = supervisor.cause(); cause && !watch.stopped())
    round.failure = Failure{.after = cause->after, .made_steps = supervisor.made_steps(), .what = one_line(*cause)};
  return round;
}

std::vector<Child> Rounds::start_ranks(const Job& job, Console& console, NodeAgent* agent) {
  const auto parent = Environment::of_process();
  // An empty stdin: a terminal would stop ranks that read it, since each leads its own process group.
  const Descriptor no_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<Console::Ends> ends;  // open until the ranks have them
  std::vector<RankStart> ranks;
  for (int local_rank = 0; local_rank < job.processes; ++local_rank) {
    const int rank = job.rank_of(local_rank);
    const auto& streams = ends.emplace_back(console.open_rank(rank));
    ranks.push_back({.environment = rank_environment(parent, job, local_rank),
                     .error_fd = streams.error.get(),
                     .input_fd = local_rank == 0 && !isatty(STDIN_FILENO) ? -1 : no_input.get(),
                     .keep_fd = rank == 0 ? job.store_fd : -1,
                     .output_fd = streams.output.get(),
                     .rank = rank,
                     .signal_mask = &signals_.mask_before()});
  }
  ForkServer::OnWait on_wait;
  if (agent)
    on_wait = [agent] {
      agent->attend();
      return std::chrono::milliseconds(std::clamp(milliseconds_until(agent->due()), 1, 100));
    };
  auto children = forks_ ? forks_->start(ranks, console, on_wait) : std::vector<Child>();
  if (children.empty()) {
    children.reserve(ranks.size());
    for (const auto& rank : ranks) children.emplace_back(rank, program_);
  }
  // The previous round may have ended in the middle of a line.
  for (int local_rank = 0; job.restarts > 0 && local_rank < job.processes; ++local_rank)
    console.say_in_log(local_rank, str("\nmuster: restart ", job.restarts));
  return children;
}

}  // namespace
}  // namespace launcher

int run(const RunOptions& options, const std::vector<std::string>& command) {
  using namespace launcher;
  auto variables = Environment::of_process();
  if (command.empty()) throw ConfigError("MU031", "no program is given: muster run [options] PROGRAM ARGUMENTS...");
  const Program program{command, find_program(command.front(), variables)};
  std::signal(SIGPIPE, SIG_IGN);
  std::optional<Rounds> rounds(std::in_place, options, plan_job(options, variables), program);
  if (has_rendezvous(options)) return rounds->run_on_nodes();
  Restarts restarts(options.max_restarts);
  const auto say_causes = [&] {
    rounds.reset();  // signals end this process again, also if nobody reads what it prints now
    for (const auto& line : restarts.summary()) say(line);
  };
  try {
    const int code = rounds->run(restarts);
    say_causes();
    return code;
  } catch (const Error&) {
    say_causes();
    throw;
  }
}

}  // namespace muster
