#include "reading.h"

#include <charconv>
#include <climits>
#include <fstream>

#include "base/log.h"
#include "base/spelling.h"
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

namespace {

[[noreturn]] void refuse(std::string_view variable, std::string_view text, std::string_view wanted) {
  throw ConfigError("MU025", log::str("variable ", variable, " is '", text, "', which is not ", wanted,
                                      "; set MASTER_ADDR and LOCAL_WORLD_SIZE yourself, or report it"));
}

constexpr std::string_view kListBlanks = " \t";

bool read_digits(std::string_view text, int& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

int tasks_on_node(std::string_view text, int node, std::string_view variable) {
  constexpr std::string_view wanted = "a list such as 2(x3),1 with an entry for every node";
  int passed = 0;
  for (std::string_view rest = text; !rest.empty();) {
    size_t comma = rest.find(',');
    auto entry = trimmed(rest.substr(0, comma), kListBlanks);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    int tasks = 0, nodes = 1;
    size_t open = entry.find("(x");
    if (open != std::string_view::npos) {
      if (entry.back() != ')' || !read_digits(entry.substr(open + 2, entry.size() - open - 3), nodes))
        refuse(variable, text, wanted);
      entry = entry.substr(0, open);
    }
    if (!read_digits(entry, tasks)) refuse(variable, text, wanted);
    passed += nodes;
    if (node < passed) return tasks;
  }
  refuse(variable, text, wanted);
}

std::string first_host(std::string_view list, std::string_view variable) {
  constexpr std::string_view wanted = "a node list such as alpha[1-3,7],beta";
  auto text = trimmed(list, kListBlanks);
  std::string host;
  // A name may contain several brackets: rack[1-2]node[03-04] begins with rack1node03.
  for (size_t at = 0; at < text.size() && text[at] != ',' && text[at] != ' ';) {
    if (text[at] == ']') refuse(variable, list, wanted);
    if (text[at] != '[') {
      host += text[at++];
      continue;
    }
    size_t close = text.find(']', at);
    if (close == std::string_view::npos) refuse(variable, list, wanted);
    auto inside = trimmed(text.substr(at + 1, close - at - 1), kListBlanks);
    auto number = trimmed(inside.substr(0, inside.find_first_of(",-")), kListBlanks);
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos)
      refuse(variable, list, wanted);
    host += number;
    at = close + 1;
  }
  if (host.empty()) refuse(variable, list, wanted);
  return host;
}

namespace {

// Lightning's values, so that both libraries derive the same port from a job.
constexpr int kFirstPort = 15000;
constexpr int kPorts = 10000;
constexpr int kPortWithoutJob = 12910;

/// The leading digits of a job id: PBS has ids such as "1234.server" or "1234[5].server".
std::optional<int> number_of_job(const std::optional<std::string>& id) {
  int number = 0;
  if (!id || std::from_chars(id->data(), id->data() + id->size(), number).ec != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> first_host_in_file(const Environment& variables, std::string_view name) {
  const auto path = variables.find(name);
  const auto hosts = path ? read_host_file(*path) : std::vector<std::string>();
  return hosts.empty() ? std::nullopt : std::optional(hosts.front());
}

/// The first host of LSF's short list, such as "alpha 4 beta 4".
std::optional<std::string> first_word(const std::optional<std::string>& list) {
  return list ? std::optional(list->substr(0, list->find(' '))) : std::nullopt;
}

}  // namespace

int port_of_job(std::optional<int> job, int step) {
  return job ? kFirstPort + (*job % kPorts + step % kPorts) % kPorts : kPortWithoutJob;
}

std::vector<std::string> read_host_file(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> hosts;
  for (std::string host; file >> host;) hosts.push_back(host);
  return hosts;
}

std::optional<HostAndPort> first_host_of_job(const Environment& variables) {
  if (auto host = first_host_in_file(variables, "PBS_NODEFILE"))
    return HostAndPort{*host, port_of_job(number_of_job(variables.find("PBS_JOBID")))};
  auto host = first_host_in_file(variables, "LSB_DJOB_RANKFILE");
  if (!host) host = first_word(variables.find("LSB_MCPU_HOSTS"));
  if (host) return HostAndPort{*host, port_of_job(number_of_job(variables.find("LSB_JOBID")))};
  for (auto name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (auto list = variables.find(name))
      return HostAndPort{first_host(*list, name), port_of_job(read_number(variables, "SLURM_JOB_ID"))};
  return std::nullopt;
}

}  // namespace muster::cluster
