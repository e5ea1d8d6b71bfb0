#include "cluster/reading.h"

#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::cluster {

using log::str;

std::optional<int> read_number(const Environment& variables, std::string_view name, int low, int high) {
  auto text = variables.find(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int>(*text);
  if (!value) throw ConfigError("MU021", str("variable ", name, " is '", *text, "', but a whole number is wanted"));
  if (*value < low || *value > high)
    throw ConfigError("MU021",
                      str("variable ", name, " is ", *value, ", but a number from ", low, " to ", high, " is wanted"));
  return value;
}

int need_number(const Environment& variables, std::string_view name, std::string_view because, int low, int high) {
  auto value = read_number(variables, name, low, high);
  if (!value)
    throw ConfigError("MU020",
                      str("variable ", because, " is set, but ", name, " is not; set both, or neither to run alone"));
  return *value;
}

std::vector<std::string> present(const Environment& variables, std::initializer_list<std::string_view> names) {
  std::vector<std::string> result;
  for (auto name : names)
    if (variables.has(name)) result.emplace_back(name);
  return result;
}

namespace {

void check_pair(std::string_view source, std::string_view small_name, int small, std::string_view large_name, int large,
                bool equal_allowed) {
  if (small < large || (equal_allowed && small == large)) return;
  throw ConfigError("MU022", str(source, source == kVariables ? " contradict each other: " : " contradicts itself: ",
                                 small_name, " is ", small, ", but ", large_name, " is ", large,
                                 "; a rank must be below its size, and a node's size at most the world's"));
}

constexpr std::string_view kReader = "the program's cluster reader";

void check_least(std::string_view name, int value, int least) {
  if (value >= least) return;
  throw ConfigError("MU022", str(kReader, " returned ", name, " ", value, ", but at least ", least, " is wanted"));
}

void check_rendezvous(const ClusterEnvironment& cluster) {
  const bool place = cluster.rendezvous == RendezvousKind::tcp
                         ? !cluster.main_address.empty() && cluster.main_port >= 1 && cluster.main_port <= 65535
                         : cluster.rendezvous == RendezvousKind::file && !cluster.store_path.empty();
  if (!place)
    throw ConfigError("MU340", str(kReader, " returned rank ", cluster.rank, " of ", cluster.world_size,
                                   " ranks, but not where they rendezvous; set rendezvous to tcp, main_address to "
                                   "the host of rank 0 and main_port to a free port there (1 to 65535), or, on one "
                                   "node, rendezvous to file and store_path"));
  if (cluster.rendezvous == RendezvousKind::file && cluster.nodes > 1)
    throw ConfigError("MU340", str(kReader, " returned ", cluster.nodes,
                                   " nodes and a rendezvous by file, which serves one node; set rendezvous to tcp, "
                                   "main_address and main_port"));
}

}  // namespace

void check_ranks(const ClusterEnvironment& cluster, const RankNames& names) {
  check_pair(names.source, names.rank, cluster.rank, names.world_size, cluster.world_size, false);
  check_pair(names.source, names.local_rank, cluster.local_rank, names.local_world_size, cluster.local_world_size,
             false);
  check_pair(names.source, names.local_world_size, cluster.local_world_size, names.world_size, cluster.world_size,
             true);
  check_pair(names.source, names.local_rank, cluster.local_rank, names.rank, cluster.rank, true);
}

void check_custom(const ClusterEnvironment& cluster) {
  check_least("world_size", cluster.world_size, 1);
  check_least("rank", cluster.rank, 0);
  check_least("local_world_size", cluster.local_world_size, 1);
  check_least("local_rank", cluster.local_rank, 0);
  check_least("nodes", cluster.nodes, 1);
  check_least("node_rank", cluster.node_rank, 0);
  check_ranks(cluster, {"rank", "world_size", "local_rank", "local_world_size", kReader});
  check_pair(kReader, "node_rank", cluster.node_rank, "nodes", cluster.nodes, false);
  check_pair(kReader, "nodes", cluster.nodes, "world_size", cluster.world_size, true);
  if (cluster.world_size > 1) check_rendezvous(cluster);
}

int read_main_port(const Environment& variables, int default_port) {
  return read_number(variables, kMainPort, 1, 65535).value_or(default_port);
}

void use_tcp_rendezvous(const std::string& host, int port, ClusterEnvironment& cluster) {
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = host;
  cluster.main_port = port;
}

bool read_main_address(const Environment& variables, int default_port, ClusterEnvironment& cluster) {
  const auto address = variables.find(kMainAddress);
  if (address) use_tcp_rendezvous(*address, read_main_port(variables, default_port), cluster);
  return address.has_value();
}

void use_file_rendezvous(ClusterEnvironment& cluster) {
  std::string name;
  for (char c : cluster.job) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.';
    name += plain ? c : '_';
  }
  cluster.rendezvous = RendezvousKind::file;
  cluster.store_path = name + ".store";
}

namespace {

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
    cluster.local_world_size = read_number(variables, kLocalWorldSize, 1).value_or(cluster.world_size);
  }
  check_ranks(cluster, kTorchNames);
  cluster.nodes = (cluster.world_size + cluster.local_world_size - 1) / cluster.local_world_size;
  cluster.node_rank = read_number(variables, kNodeRank).value_or(cluster.rank / cluster.local_world_size);
  cluster.job = "environment";
  if (cluster.world_size > 1) need_main_address(variables, kRank, cluster);
  return cluster;
}

}  // namespace muster::cluster
