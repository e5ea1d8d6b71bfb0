#include "reading.h"

#include <charconv>
#include <climits>

#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::cluster {

using log::str;

std::optional<int> read_number(const Environment& variables, std::string_view name, int low, int high) {
  auto text = variables.find(name);
  if (!text) return std::nullopt;
  int value = 0;
  auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || *end != '\0')
    throw ConfigError("MU021", str("variable ", name, " is '", *text, "', but a whole number is wanted"));
  if (value < low || value > high)
    throw ConfigError("MU021",
                      str("variable ", name, " is ", value, ", but a number from ", low, " to ", high, " is wanted"));
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

}  // namespace

void check_ranks(const ClusterEnvironment& cluster, const RankNames& names) {
  check_pair(names.source, names.rank, cluster.rank, names.world_size, cluster.world_size, false);
  check_pair(names.source, names.local_rank, cluster.local_rank, names.local_world_size, cluster.local_world_size,
             false);
  check_pair(names.source, names.local_world_size, cluster.local_world_size, names.world_size, cluster.world_size,
             true);
  check_pair(names.source, names.local_rank, cluster.local_rank, names.rank, cluster.rank, true);
}

namespace {

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

bool read_main_address(const Environment& variables, int default_port, ClusterEnvironment& cluster) {
  auto address = variables.find(kMainAddress);
  if (!address) return false;
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = *address;
  cluster.main_port = read_number(variables, kMainPort, 1, 65535).value_or(default_port);
  return true;
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

}  // namespace muster::cluster
