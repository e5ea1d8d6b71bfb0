#include "launcher/rendezvous/node_rounds.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/log.h"
#include "cluster/signature.h"
#include "launcher/option_tables.h"
#include "muster/base/error.h"

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
  std::string digits;
  for (const auto byte : cluster::sign(secret, {"muster command", words})) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    digits += pair;
  }
  return digits;
}

NodeAgent::Setup agent_setup(const RunOptions& options, const Job& plan, const std::vector<std::string>& command) {
  std::string line;
  for (const auto& word : command) line += (line.empty() ? "" : " ") + word;
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

}  // namespace

bool has_rendezvous(const RunOptions& options) {
  const auto& [least, most] = options.nodes;
  return most > 1 && (options.max_restarts > 0 || least < most);
}

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

}  // namespace muster::launcher
