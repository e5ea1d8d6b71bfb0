#include <algorithm>
#include <sstream>

#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

// Lightning's first port and number of ports: both libraries derive the same port from a job.
constexpr int kFirstLsfPort = 10000;
constexpr int kLsfPorts = 1000;

constexpr RankNames kNames{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                           "JSM_NAMESPACE_LOCAL_SIZE"};

/// The hosts that ranks run on, in order. Both lists begin with the host that jsrun itself runs on.
std::vector<std::string> compute_hosts(const Environment& variables) {
  std::vector<std::string> hosts;
  if (auto path = variables.find("LSB_DJOB_RANKFILE")) hosts = read_host_file(*path);
  if (auto list = variables.find("LSB_MCPU_HOSTS"); list && hosts.empty()) {
    std::istringstream words(*list);
    for (std::string host, slots; words >> host >> slots;) hosts.push_back(host);
  }
  if (!hosts.empty()) hosts.erase(hosts.begin());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

int read_local_world_size(const Environment& variables, int world_size, int hosts) {
  if (auto size = read_number(variables, kNames.local_world_size, 1)) return *size;
  if (hosts > 0 && world_size % hosts == 0) return world_size / hosts;
  throw ConfigError("MU020", str("variable ", kNames.rank, " is set, but ", kNames.local_world_size, " is not, and ",
                                 world_size, " ranks do not spread evenly over the ", hosts,
                                 " hosts of LSB_DJOB_RANKFILE; set it to the number of ranks on this host"));
}

}  // namespace

ClusterEnvironment read_jsrun(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::lsf;
  cluster.rank = need_number(variables, kNames.rank, kNames.world_size);
  cluster.world_size = need_number(variables, kNames.world_size, kNames.rank, 1);
  cluster.local_rank = need_number(variables, kNames.local_rank, kNames.rank);
  const auto hosts = compute_hosts(variables);
  cluster.local_world_size = read_local_world_size(variables, cluster.world_size, static_cast<int>(hosts.size()));
  check_ranks(cluster, kNames);
  cluster.nodes = (cluster.world_size + cluster.local_world_size - 1) / cluster.local_world_size;
  cluster.node_rank = cluster.rank / cluster.local_world_size;
  const auto job = read_number(variables, "LSB_JOBID");
  if (job) cluster.job = str("lsf-", *job);
  cluster.store_prefix = "muster/0";
  const int port = job ? kFirstLsfPort + *job % kLsfPorts : kDefaultPort;
  if (cluster.world_size == 1 || read_main_address(variables, port, cluster)) return cluster;
  if (hosts.empty())
    throw ConfigError("MU024", str("jsrun started ", cluster.world_size,
                                   " ranks, but neither LSB_DJOB_RANKFILE nor LSB_MCPU_HOSTS names their hosts; set "
                                   "MASTER_ADDR, the host of rank 0, and MASTER_PORT"));
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = hosts.front();
  cluster.main_port = read_number(variables, kMainPort, 1, 65535).value_or(port);
  return cluster;
}

}  // namespace muster::cluster
