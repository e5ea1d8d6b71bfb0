#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

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
  for (auto name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    auto list = variables.find(name);
    if (!list) continue;
    cluster.rendezvous = RendezvousKind::tcp;
    cluster.main_address = first_host(*list, name);
    cluster.main_port = read_number(variables, kMainPort, 1, 65535).value_or(port_of_step(variables));
    return;
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
  cluster.store_prefix = str("muster/", cluster.restart_count);
  set_rendezvous(variables, cluster);
  return cluster;
}

}  // namespace muster::cluster
