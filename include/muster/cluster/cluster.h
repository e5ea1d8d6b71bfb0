#pragma once

#include <string>
#include <string_view>

#include "muster/base/environment.h"
#include "muster/cluster/options.h"

namespace muster {

/// Who started this process.
enum class LauncherKind {
  none,         ///< no launcher: a program run by itself
  muster,       ///< `muster run`, or muster::launch()
  torchrun,     ///< torchrun, or another front end of torch elastic
  environment,  ///< RANK and WORLD_SIZE set by hand, by Lightning, or by a job system (Kubeflow)
  open_mpi,     ///< Open MPI's mpirun
  mvapich,      ///< MVAPICH's mpirun_rsh
  pmi,          ///< a launcher that speaks PMI, such as MPICH's mpiexec
  slurm,        ///< srun
  lsf,          ///< LSF's jsrun
  kubernetes,   ///< a pod of an Indexed Job or of Kubeflow, with one rank
  sagemaker,    ///< a container of a SageMaker training job, with one rank
  custom,       ///< a launcher that the program's own ClusterReader understands
};

/// "none", "muster", "torchrun", "environment", "open_mpi", "mvapich", "pmi", "slurm", "lsf", "kubernetes",
/// "sagemaker", "custom".
std::string_view to_string(LauncherKind kind);

/// How the ranks rendezvous.
enum class RendezvousKind {
  none,  ///< a world of one: no rendezvous
  tcp,   ///< a store at main_address:main_port
  file,  ///< a file at store_path, for a job on one node
};

/// The place of this process among the ranks of its job. A plain value.
struct ClusterEnvironment {
  int device_index = -1;  ///< the accelerator that the launcher chose for this rank; -1: none chosen, take local_rank
  std::string job;        ///< the launcher's name for the job; equal on every rank, empty when alone
  LauncherKind launcher = LauncherKind::none;
  int local_rank = 0;        ///< 0 to local_world_size - 1
  int local_world_size = 1;  ///< ranks on this node
  std::string main_address;  ///< host of rank 0; empty unless rendezvous is tcp
  int main_port = 0;         ///< port of the store; 0 unless rendezvous is tcp
  int node_rank = 0;         ///< 0 to nodes - 1
  int nodes = 1;
  std::string note;  ///< a remark to log once on rank 0; usually empty
  int rank = 0;      ///< 0 to world_size - 1
  RendezvousKind rendezvous = RendezvousKind::none;
  int report_fd = -1;     ///< descriptor for this rank's reports to its launcher, see detail/report.h; -1: none
  int restart_count = 0;  ///< how often the launcher has restarted the job
  /// True if another process (torchrun's agent) runs the store at main_port: rank 0 joins as a client too.
  bool store_is_external = false;
  /// A listening socket bound to main_port that rank 0's store server takes over, or -1.
  /// The code that takes over the socket owns it, and unsets cluster::kStoreFd so that this happens only once.
  int store_listen_fd = -1;
  std::string
      store_path;  ///< file for a FileStore; a relative path is in private_folder(); empty unless rendezvous is file
  std::string store_prefix;  ///< prefix of all keys: separates restarts of a job in a store that outlives them
  int world_size = 1;

  bool is_main() const noexcept { return rank == 0; }
  bool is_local_main() const noexcept { return local_rank == 0; }
};

/// Reads a launcher's environment variables: those of torchrun, Muster, RANK and WORLD_SIZE alone, Lightning,
/// Kubernetes, Open MPI, MVAPICH, PMI, SLURM, LSF, Kubeflow and SageMaker. Uses the first family that is set, and the
/// files that its variables name. If no family is set, the world size is 1. Throws: ConfigError for variables that are
/// incomplete (MU020), not a number (MU021) or contradict each other (MU022), for a launcher that it does not support
/// (MU023), for several nodes without an address (MU024), for a node list that it cannot read (MU025), for several
/// ranks of a pod in which only this process was started (MU493), for SageMaker's distributed training libraries
/// (MU492) and for its hosts file (MU494). Every message names its source.
ClusterEnvironment read_cluster_environment(const Environment& variables);

/// Asks `reader` first. Its result is used, as LauncherKind::custom unless it names another kind. If `reader` is empty
/// or returns nullopt, the variables are read by read_cluster_environment(variables).
/// Throws: as read_cluster_environment(variables); ConfigError (MU022) if ranks and sizes that `reader` returns
/// contradict each other, (MU340) if it returns several ranks without a rendezvous; what `reader` throws.
ClusterEnvironment read_cluster_environment(const Environment& variables, const ClusterReader& reader);

/// Reads the variables of this process, without a reader.
ClusterEnvironment read_cluster_environment();

}  // namespace muster
