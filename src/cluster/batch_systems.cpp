#include <csignal>
#include <fstream>

#include "base/log.h"
#include "base/run_program.h"
#include "base/text.h"
#include "base/variables.h"
#include "cluster/reading.h"
#include "muster/base/error.h"

namespace muster::cluster {

using log::str;

// Lists of hosts, and the ports of jobs

namespace {

[[noreturn]] void refuse(std::string_view variable, std::string_view text, std::string_view wanted) {
  throw ConfigError("MU025", str("variable ", variable, " is '", text, "', which is not ", wanted,
                                 "; set MASTER_ADDR and LOCAL_WORLD_SIZE yourself, or report it"));
}

constexpr std::string_view kListBlanks = " \t";

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

}  // namespace

int tasks_on_node(std::string_view text, int node, std::string_view variable) {
  constexpr std::string_view wanted = "a list such as 2(x3),1 with an entry for every node";
  int passed = 0;
  for (const auto& part : split_text(text, ',')) {
    const auto entry = trimmed(part, kListBlanks);
    const auto open = std::min(entry.find("(x"), entry.size());
    const bool repeated = open < entry.size();
    const auto count = repeated && entry.back() == ')' ? entry.substr(open + 2, entry.size() - open - 3) : "";
    const int nodes = repeated ? parse_number<int>(count).value_or(-1) : 1;
    const int tasks = parse_number<int>(entry.substr(0, open)).value_or(-1);
    if (tasks < 0 || nodes < 0) refuse(variable, text, wanted);
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
  // LSF's short list, such as "alpha 4 beta 4".
  if (const auto list = variables.find("LSB_MCPU_HOSTS"); list && !host) host = list->substr(0, list->find(' '));
  if (host) return HostAndPort{*host, port_of_job(number_of_job(variables.find("LSB_JOBID")))};
  for (auto name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (auto list = variables.find(name))
      return HostAndPort{first_host(*list, name), port_of_job(read_number(variables, "SLURM_JOB_ID"))};
  return std::nullopt;
}

// SLURM

namespace {

constexpr RankNames kSlurmNames{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};

/// The step's variable if it is set, otherwise the job's.
std::string_view either(const Environment& variables, std::string_view step, std::string_view job) {
  return variables.has(step) ? step : job;
}

int read_local_world_size(const Environment& variables, const ClusterEnvironment& cluster) {
  auto name = either(variables, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  if (auto text = variables.find(name)) return tasks_on_node(*text, cluster.node_rank, name);
  if (auto tasks = read_number(variables, kSlurmNames.local_world_size, 1)) return *tasks;
  if (cluster.nodes == 1) return cluster.world_size;
  throw ConfigError("MU020", str("SLURM_NTASKS is ", cluster.world_size, " on ", cluster.nodes,
                                 " nodes, but neither SLURM_TASKS_PER_NODE nor SLURM_NTASKS_PER_NODE is set; "
                                 "start with srun --ntasks-per-node=N"));
}

/// The port of a step: steps of one job run side by side, so each needs its own.
int port_of_step(const Environment& variables) {
  return port_of_job(read_number(variables, "SLURM_JOB_ID"), read_number(variables, "SLURM_STEP_ID").value_or(0));
}

void set_rendezvous(const Environment& variables, ClusterEnvironment& cluster) {
  if (cluster.world_size == 1 || read_main_address(variables, port_of_step(variables), cluster)) return;
  if (cluster.nodes == 1 && !cluster.job.empty()) return use_file_rendezvous(cluster);
  for (auto name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (const auto list = variables.find(name)) {
      const auto host = first_host(*list, name);  // before the port: of two errors it is the one to mend first
      return use_tcp_rendezvous(host, read_main_port(variables, port_of_step(variables)), cluster);
    }
  throw ConfigError(
      "MU024", str("SLURM started ", cluster.world_size, " ranks on ", cluster.nodes,
                   " nodes, but gives no SLURM_JOB_NODELIST; set MASTER_ADDR, the host of rank 0, and MASTER_PORT"));
}

}  // namespace

SlurmPresence find_slurm(const Environment& variables) {
  if (!variables.has("SLURM_NTASKS") && !variables.has("SLURM_PROCID")) return SlurmPresence::none;
  auto name = variables.find("SLURM_JOB_NAME").value_or("");
  bool shell_name = name == "bash" || name == "interactive";
  // salloc, too, names its jobs "interactive", so a step of several tasks overrides the name, except under --pty.
  bool many = read_number(variables, "SLURM_STEP_NUM_TASKS").value_or(1) > 1 && !variables.has("SLURM_PTY_PORT");
  if (shell_name && !many) return SlurmPresence::shell;
  // Batch scripts and salloc shells have the job's variables but belong to no step.
  bool step = variables.has("SLURM_STEP_ID") || read_number(variables, "SLURM_PROCID").value_or(0) > 0;
  return step ? SlurmPresence::task : SlurmPresence::shell;
}

ClusterEnvironment read_slurm(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::slurm;
  auto size = either(variables, "SLURM_STEP_NUM_TASKS", kSlurmNames.world_size);
  auto nodes = either(variables, "SLURM_STEP_NUM_NODES", either(variables, "SLURM_NNODES", "SLURM_JOB_NUM_NODES"));
  cluster.rank = need_number(variables, kSlurmNames.rank, size);
  cluster.world_size = need_number(variables, size, kSlurmNames.rank, 1);
  cluster.local_rank = need_number(variables, kSlurmNames.local_rank, kSlurmNames.rank);
  cluster.node_rank = need_number(variables, "SLURM_NODEID", kSlurmNames.rank);
  cluster.nodes = read_number(variables, nodes, 1).value_or(1);
  if (cluster.node_rank >= cluster.nodes)
    throw ConfigError("MU022", str("variables contradict each other: SLURM_NODEID is ", cluster.node_rank, ", but ",
                                   nodes, " is ", cluster.nodes));
  cluster.local_world_size = read_local_world_size(variables, cluster);
  check_ranks(cluster, {kSlurmNames.rank, size, kSlurmNames.local_rank, "SLURM_TASKS_PER_NODE"});
  cluster.restart_count = read_number(variables, "SLURM_RESTART_COUNT").value_or(0);
  if (auto job = variables.find("SLURM_JOB_ID"))
    cluster.job = str(*job, "-", variables.find("SLURM_STEP_ID").value_or("0"), "-", cluster.restart_count);
  set_rendezvous(variables, cluster);
  return cluster;
}

std::string slurm_job(const Environment& variables) {
  const auto array = variables.find("SLURM_ARRAY_JOB_ID"), task = variables.find("SLURM_ARRAY_TASK_ID");
  if (array && task) return *array + "_" + *task;
  return variables.find("SLURM_JOB_ID").value_or("");
}

std::string requeue_slurm_job(const std::string& job) {
  const auto scontrol = run_program({"scontrol", "requeue", job}, std::chrono::minutes(1));
  if (!scontrol.problem.empty()) return str("scontrol ", scontrol.problem);
  // When SLURM requeues a job it ends every process of it, including scontrol.
  if (scontrol.succeeded() || scontrol.signal == SIGTERM) return "";
  return str("scontrol requeue failed: ", trimmed(scontrol.output, " \t\n"));
}

// LSF's jsrun

namespace {

// Lightning's first port and number of ports: both libraries derive the same port from a job.
constexpr int kFirstLsfPort = 10000;
constexpr int kLsfPorts = 1000;

constexpr RankNames kLsfNames{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
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
  if (auto size = read_number(variables, kLsfNames.local_world_size, 1)) return *size;
  if (hosts > 0 && world_size % hosts == 0) return world_size / hosts;
  throw ConfigError("MU020", str("variable ", kLsfNames.rank, " is set, but ", kLsfNames.local_world_size,
                                 " is not, and ", world_size, " ranks do not spread evenly over the ", hosts,
                                 " hosts of LSB_DJOB_RANKFILE; set it to the number of ranks on this host"));
}

}  // namespace

ClusterEnvironment read_jsrun(const Environment& variables) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::lsf;
  cluster.rank = need_number(variables, kLsfNames.rank, kLsfNames.world_size);
  cluster.world_size = need_number(variables, kLsfNames.world_size, kLsfNames.rank, 1);
  cluster.local_rank = need_number(variables, kLsfNames.local_rank, kLsfNames.rank);
  const auto hosts = compute_hosts(variables);
  cluster.local_world_size = read_local_world_size(variables, cluster.world_size, static_cast<int>(hosts.size()));
  check_ranks(cluster, kLsfNames);
  cluster.nodes = (cluster.world_size + cluster.local_world_size - 1) / cluster.local_world_size;
  cluster.node_rank = cluster.rank / cluster.local_world_size;
  const auto job = read_number(variables, "LSB_JOBID");
  if (job) cluster.job = str("lsf-", *job);
  const int port = job ? kFirstLsfPort + *job % kLsfPorts : kDefaultPort;
  if (cluster.world_size == 1 || read_main_address(variables, port, cluster)) return cluster;
  if (hosts.empty())
    throw ConfigError("MU024", str("jsrun started ", cluster.world_size,
                                   " ranks, but neither LSB_DJOB_RANKFILE nor LSB_MCPU_HOSTS names their hosts; set "
                                   "MASTER_ADDR, the host of rank 0, and MASTER_PORT"));
  use_tcp_rendezvous(hosts.front(), read_main_port(variables, port), cluster);
  return cluster;
}

// MPI

namespace {

/// A family of variables of an MPI launcher; names that it does not set are empty.
struct Family {
  LauncherKind kind;
  RankNames names;
  std::string_view launcher;
};

ClusterEnvironment read_family(const Environment& variables, const Family& family, const std::string& job) {
  const auto& names = family.names;
  ClusterEnvironment cluster;
  cluster.launcher = family.kind;
  cluster.job = job;
  cluster.rank = need_number(variables, names.rank, names.world_size);
  cluster.world_size = need_number(variables, names.world_size, names.rank, 1);
  const bool has_local = variables.has(names.local_rank) || variables.has(names.local_world_size);
  cluster.local_rank = has_local ? need_number(variables, names.local_rank, names.local_world_size) : cluster.rank;
  const int local =
      has_local ? need_number(variables, names.local_world_size, names.local_rank, 1) : cluster.world_size;
  cluster.local_world_size = local;
  check_ranks(cluster, names);
  cluster.nodes = (cluster.world_size + local - 1) / local;
  // MPI does not tell whether ranks are placed node by node or round-robin.
  bool round_robin = cluster.rank % local != cluster.local_rank && cluster.rank / cluster.nodes == cluster.local_rank;
  cluster.node_rank = round_robin ? cluster.rank % cluster.nodes : cluster.rank / local;
  if (cluster.world_size == 1 || read_main_address(variables, kDefaultPort, cluster)) return cluster;
  // mpirun places rank 0 on the first host from the job system.
  if (auto first = cluster.nodes > 1 ? first_host_of_job(variables) : std::nullopt) {
    use_tcp_rendezvous(first->host, read_main_port(variables, first->port), cluster);
    return cluster;
  }
  if (cluster.nodes > 1)
    throw ConfigError("MU024",
                      str(family.launcher, " started ", cluster.world_size, " ranks on ", cluster.nodes, " nodes (",
                          names.world_size, ", ", names.local_world_size,
                          "), but MASTER_ADDR is not set; give every rank MASTER_ADDR, the host of rank 0, and "
                          "MASTER_PORT (with mpirun: -x MASTER_ADDR=host -x MASTER_PORT=29500)"));
  if (job.empty())
    throw ConfigError("MU024",
                      str(family.launcher, " gives no name of the job by which ", cluster.world_size,
                          " ranks could rendezvous; set MASTER_ADDR=127.0.0.1 and a free MASTER_PORT for all ranks"));
  use_file_rendezvous(cluster);
  return cluster;
}

}  // namespace

ClusterEnvironment read_open_mpi(const Environment& variables) {
  static constexpr Family family{
      LauncherKind::open_mpi,
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      "Open MPI"};
  std::string job = variables.find("PMIX_NAMESPACE").value_or("");
  // Name spaces repeat when process ids do; the transport key is random.
  if (auto key = variables.find("OMPI_MCA_orte_precondition_transports")) job += (job.empty() ? "" : "-") + *key;
  return read_family(variables, family, job);
}

ClusterEnvironment read_mvapich(const Environment& variables) {
  static constexpr Family family{
      LauncherKind::mvapich,
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
      "MVAPICH"};
  return read_family(variables, family, variables.find("MPISPAWN_ID").value_or(""));
}

ClusterEnvironment read_pmi(const Environment& variables) {
  static constexpr Family family{
      LauncherKind::pmi, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, "a PMI launcher"};
  return read_family(variables, family, variables.find("PMI_KVSNAME").value_or(variables.find("PMI_ID").value_or("")));
}

}  // namespace muster::cluster
