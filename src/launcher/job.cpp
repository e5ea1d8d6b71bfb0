#include "launcher/job.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/options_text.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::launcher {

Environment rank_environment(const Environment& parent, const Job& job, int local_rank) {
  Environment result = parent;
  // The variables of outer launchers would contradict Muster's.
  for (const auto& [name, value] : parent.variables())
    if (name.starts_with("TORCHELASTIC_") || name.starts_with("ROLE_")) result.unset(name);
  for (auto name : {cluster::kJobStart, cluster::kStoreFd, cluster::kDeviceIndex, cluster::kReportFd, cluster::kSecret,
                    cluster::kSecretFile})
    result.unset(name);
  auto set = [&](const char* name, int value) { result.set(name, std::to_string(value)); };
  result.set(cluster::kJob, job.name);
  if (job.start > 0) result.set(cluster::kJobStart, std::to_string(job.start));
  set(cluster::kRank, job.rank_of(local_rank));
  set(cluster::kWorldSize, job.world_size());
  set(cluster::kLocalRank, local_rank);
  set(cluster::kLocalWorldSize, job.processes);
  set(cluster::kNodeRank, job.node_rank);
  set(cluster::kNodes, job.nodes);
  set(cluster::kRestartCount, job.restarts);
  set(cluster::kTorchRestartCount, job.restarts);
  result.set(cluster::kMainAddress, job.main_address);
  set(cluster::kMainPort, job.main_port);
  if (job.store_fd >= 0 && job.rank_of(local_rank) == 0) set(cluster::kStoreFd, job.store_fd);
  if (job.secret.is_given()) result.set(cluster::kSecret, job.secret.reveal());
  if (!job.device_indices.empty()) set(cluster::kDeviceIndex, job.device_indices.at(static_cast<size_t>(local_rank)));
  if (!job.visible_devices.empty()) {
    result.set(cluster::kVisibleDevices, job.visible_devices.at(static_cast<size_t>(local_rank)));
    set(cluster::kDeviceIndex, 0);
  }
  if (!job.options.empty()) result.set(options::kLineVariable, job.options);
  if (job.threads > 0 || !result.has("OMP_NUM_THREADS"))
    set("OMP_NUM_THREADS", job.threads > 0 ? job.threads : std::max(1, job.cores / job.processes));
  return result;
}

std::string new_job_name() { return std::to_string(getpid()) + "-" + random_word(12); }

constexpr int kPortOfSeveralNodes = 29400;  // default port of torchrun's c10d rendezvous

void check_nodes(const StartRound& nodes) {
  using log::str;
  if (nodes.nodes < 1) throw ConfigError("MU036", str("nodes is ", nodes.nodes, "; at least 1 is wanted"));
  if (nodes.node_rank < 0 || nodes.node_rank >= nodes.nodes)
    throw ConfigError("MU036", str("node rank is ", nodes.node_rank,
                                   ", but it must be from 0 to nodes - 1, and nodes is ", nodes.nodes));
  if (nodes.main_port < 0 || nodes.main_port > 65535)
    throw ConfigError("MU036", str("main port is ", nodes.main_port, "; 0 (a free one) to 65535 is wanted"));
  if (nodes.nodes > 1 && nodes.main_address.empty())
    throw ConfigError("MU036", str("nodes is ", nodes.nodes,
                                   ", but no main address is given; give --main-address, the host of "
                                   "node 0 as the other nodes reach it"));
}

void place_store(const std::string& main_address, int main_port, Job& job) {
  bool several = job.nodes > 1;
  job.main_address = several ? main_address : "127.0.0.1";
  job.main_port = several && main_port == 0 ? kPortOfSeveralNodes : main_port;
  job.name = several ? job.main_address + "-" + std::to_string(job.main_port) : new_job_name();
}

cluster::Secret secret_of_job(const std::string& file, const Environment& variables, int nodes) {
  auto given = file.empty() ? cluster::read_secret(variables) : cluster::read_secret_file(file);
  return given.is_given() || nodes > 1 ? given : cluster::make_secret();
}

cluster::ListeningSocket open_store(Job& job) {
  using cluster::ListeningSocket;
  if (job.node_rank != 0) return ListeningSocket();
  // A world of one has no rendezvous, but a program without Muster still gets a free port in its variables.
  if (job.world_size() == 1) {
    if (job.main_port == 0) job.main_port = ListeningSocket(0, job.main_address).port();
    return ListeningSocket();
  }
  ListeningSocket store(job.main_port, cluster::where_to_listen(job.main_address));
  job.main_port = store.port();
  job.store_fd = store.fd();
  return store;
}

}  // namespace muster::launcher
