#include "base/log.h"
#include "base/spelling.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

constexpr const char* kLightningNodeRank = "NODE_RANK";

constexpr RankNames kTorchNames{kRank, kWorldSize, kLocalRank, kLocalWorldSize};

/// Reads torchrun's variables for ranks and derives those that are missing.
void read_ranks(const Environment& variables, std::string_view because, ClusterEnvironment& cluster) {
  cluster.rank = need_number(variables, kRank, because);
  cluster.world_size = need_number(variables, kWorldSize, because, 1);
  cluster.local_rank = need_number(variables, kLocalRank, because);
  cluster.local_world_size = need_number(variables, kLocalWorldSize, because, 1);
  check_ranks(cluster, kTorchNames);
  int even = (cluster.world_size + cluster.local_world_size - 1) / cluster.local_world_size;
  cluster.nodes = read_number(variables, kNodes, 1).value_or(even);
  cluster.node_rank = read_number(variables, kNodeRank).value_or(cluster.rank / cluster.local_world_size);
  if (cluster.node_rank >= cluster.nodes)
    throw ConfigError("MU022", str("variables contradict each other: GROUP_RANK is ", cluster.node_rank, ", but ",
                                   variables.has(kNodes) ? "GROUP_WORLD_SIZE" : "WORLD_SIZE / LOCAL_WORLD_SIZE", " is ",
                                   cluster.nodes));
}

void need_main_address(const Environment& variables, std::string_view because, ClusterEnvironment& cluster) {
  if (!read_main_address(variables, 0, cluster))
    throw ConfigError("MU020",
                      str("variable ", because, " is set, but MASTER_ADDR is not; set it to the host of rank 0"));
  cluster.main_port = need_number(variables, kMainPort, kMainAddress, 1, 65535);
}

}  // namespace

ClusterEnvironment read_torchrun(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::torchrun;
  cluster.job = *variables.find("TORCHELASTIC_RUN_ID");
  read_ranks(variables, "TORCHELASTIC_RUN_ID", cluster);
  cluster.restart_count = read_number(variables, kTorchRestartCount).value_or(0);
  cluster.store_is_external = read_bool(variables.find("TORCHELASTIC_USE_AGENT_STORE").value_or("")).value_or(false);
  cluster.store_prefix = str("muster/", cluster.restart_count);
  // Even a world of one has a rendezvous: the agent's address is set, and costs nothing until it is used.
  need_main_address(variables, "TORCHELASTIC_RUN_ID", cluster);
  return cluster;
}

ClusterEnvironment read_muster(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::muster;
  cluster.job = *variables.find(kJob);
  read_ranks(variables, kJob, cluster);
  cluster.device_index = read_number(variables, kDeviceIndex).value_or(-1);
  cluster.report_fd = read_number(variables, kReportFd).value_or(-1);
  cluster.restart_count = read_number(variables, kRestartCount).value_or(0);
  cluster.store_prefix = str("muster/", cluster.restart_count);
  if (cluster.world_size == 1) return cluster;
  need_main_address(variables, kJob, cluster);
  if (cluster.rank == 0) cluster.store_listen_fd = read_number(variables, kStoreFd).value_or(-1);
  return cluster;
}

ClusterEnvironment read_lightning(const Environment& variables) {
  auto completed = variables;
  const int local = need_number(variables, kLocalRank, kWorldSize);
  const auto node_name = variables.has(kLightningNodeRank) ? kLightningNodeRank : kNodeRank;
  const int node = read_number(variables, node_name).value_or(0);
  // On a single node Lightning starts the whole world; it does not state the number of ranks on other nodes.
  const int size =
      node == 0 && !variables.has(kLocalWorldSize) ? 0 : need_number(variables, kLocalWorldSize, node_name);
  completed.set(kRank, std::to_string(node * size + local));
  completed.set(kNodeRank, std::to_string(node));
  return read_plain(completed);
}

ClusterEnvironment read_plain(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::environment;
  cluster.rank = need_number(variables, kRank, kWorldSize);
  cluster.world_size = need_number(variables, kWorldSize, kRank, 1);
  // Without local variables, as under job systems such as Kubeflow, there is one process per node.
  bool local = variables.has(kLocalRank) || variables.has(kLocalWorldSize);
  if (local) {
    cluster.local_rank = need_number(variables, kLocalRank, kLocalWorldSize);
    int at_least = cluster.world_size;
    cluster.local_world_size = read_number(variables, kLocalWorldSize, 1).value_or(at_least);
  }
  check_ranks(cluster, kTorchNames);
  int even = (cluster.world_size + cluster.local_world_size - 1) / cluster.local_world_size;
  cluster.nodes = even;
  cluster.node_rank = read_number(variables, kNodeRank).value_or(cluster.rank / cluster.local_world_size);
  cluster.job = "environment";
  cluster.store_prefix = "muster/0";
  if (cluster.world_size > 1) need_main_address(variables, kRank, cluster);
  return cluster;
}

}  // namespace muster::cluster
