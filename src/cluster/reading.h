#pragma once  // for other rooms

#include "muster/base/environment.h"
#include "muster/cluster/cluster.h"

/// Reads the families of launcher variables, and has SLURM requeue a job.
namespace muster::cluster {

/// An integer in [low, high]; nullopt if the variable is not set. Throws: ConfigError (MU021) with variable and value.
std::optional<int> read_number(const Environment& variables, std::string_view name, int low = 0, int high = 1 << 30);

/// As read_number(), for a variable that must be set because `because` is. Throws: ConfigError (MU020) if it is not.
int need_number(const Environment& variables, std::string_view name, std::string_view because, int low = 0,
                int high = 1 << 30);

/// Those of `names` that are set.
std::vector<std::string> present(const Environment& variables, std::initializer_list<std::string_view> names);

/// Port of a launcher that names none: torchrun's default.
inline constexpr int kDefaultPort = 29500;

inline constexpr std::string_view kVariables = "variables";

/// The names of a family's variables, and their source, for the messages of check_ranks().
struct RankNames {
  std::string_view rank, world_size, local_rank, local_world_size;
  std::string_view source = kVariables;
};

/// Throws: ConfigError (MU022) with the variables if ranks, sizes and nodes contradict each other.
void check_ranks(const ClusterEnvironment& cluster, const RankNames& names);

/// As check_ranks(), for the result of a custom reader: its numbers may be negative, and (MU340) its rendezvous
/// missing.
void check_custom(const ClusterEnvironment& cluster);

/// MASTER_PORT, if it is set.
int read_main_port(const Environment& variables, int default_port);

/// Sets a rendezvous by TCP.
void use_tcp_rendezvous(const std::string& host, int port, ClusterEnvironment& cluster);

/// Sets a rendezvous by TCP from MASTER_ADDR and MASTER_PORT if the first is set; returns whether.
bool read_main_address(const Environment& variables, int default_port, ClusterEnvironment& cluster);

/// Sets a rendezvous by file, for one node: a file named after the job, in the user's private folder.
void use_file_rendezvous(ClusterEnvironment& cluster);

ClusterEnvironment read_torchrun(const Environment& variables);
ClusterEnvironment read_muster(const Environment& variables);
ClusterEnvironment read_plain(const Environment& variables);
ClusterEnvironment read_open_mpi(const Environment& variables);
ClusterEnvironment read_mvapich(const Environment& variables);
ClusterEnvironment read_pmi(const Environment& variables);
ClusterEnvironment read_slurm(const Environment& variables);
/// Requires: WORLD_SIZE and LOCAL_RANK are set, as by Lightning's launcher, and RANK is not.
ClusterEnvironment read_lightning(const Environment& variables);
/// Requires: JSM_NAMESPACE_RANK is set.
ClusterEnvironment read_jsrun(const Environment& variables);
/// One rank per pod. Requires: JOB_COMPLETION_INDEX and WORLD_SIZE are set.
ClusterEnvironment read_indexed_job(const Environment& variables);
/// One rank per pod. Requires: PET_NNODES is set.
ClusterEnvironment read_kubeflow(const Environment& variables);
/// One rank per container. Requires: in_sagemaker().
ClusterEnvironment read_sagemaker(const Environment& variables);

/// The port of a job's store: 15000 plus the last four digits of the job's number; 12910 without a number.
int port_of_job(std::optional<int> job, int step = 0);

/// The first host that PBS, LSF or SLURM gave to the job, and a port derived from the job's number; empty if none did.
struct HostAndPort {
  std::string host;
  int port = 0;
};
std::optional<HostAndPort> first_host_of_job(const Environment& variables);

/// The words of a host file, one per slot; empty if it cannot be read.
std::vector<std::string> read_host_file(const std::string& path);

/// Whether this is a container of a SageMaker training job.
bool in_sagemaker(const Environment& variables);
/// Throws: ConfigError (MU492) if the job asks for SageMaker's libraries for distributed training.
void refuse_sagemaker_libraries(const Environment& variables);

/// The role of this process according to SLURM's variables.
enum class SlurmPresence {
  none,   ///< no SLURM
  shell,  ///< an interactive shell, or a batch script: a program in it runs alone
  task,   ///< a task started by srun
};
SlurmPresence find_slurm(const Environment& variables);

/// SLURM's id of this process's job: "123", or "120_3" for a job array; empty outside of SLURM.
std::string slurm_job(const Environment& variables);

/// Requeues the job with `scontrol requeue JOB`, found in PATH, and waits for at most a minute. Returns an empty text
/// on success, otherwise the problem: no scontrol, its exit code and output, or the time-out.
std::string requeue_slurm_job(const std::string& job);

/// The number of tasks on node `node`, from SLURM's short form, such as "2(x3),1".
/// Throws: ConfigError (MU025) with the variable's name.
int tasks_on_node(std::string_view text, int node, std::string_view variable);

/// The first host of a SLURM node list: "alpha03" for "alpha[03-05,9],beta".
/// Throws: ConfigError (MU025) with the variable's name.
std::string first_host(std::string_view list, std::string_view variable);

/// This host's place among the hosts of a job, as the cluster states it, for a launcher that runs once per host.
struct NodePlace {
  std::string devices = {};       ///< ranks on each node: a count or "auto"; empty: not stated
  std::string main_address = {};  ///< host of node 0; empty: not stated
  int main_port = 0;              ///< port on node 0; 0: not stated
  std::optional<int> node_rank = {};
  /// Set only by clusters that start one command on every node: SageMaker, Kubeflow.
  std::optional<int> nodes = {};
  std::string source = {};  ///< variable or file with the information
};

/// Reads Kubeflow's PET_ variables, SageMaker's hosts, the index of a Kubernetes Indexed Job, and the node of a SLURM
/// or PBS task; nullopt if none of them is set.
/// Throws: ConfigError (MU021) for a value that is not a number, (MU025) for a malformed node list, (MU494) for
/// unreadable hosts of SageMaker.
std::optional<NodePlace> find_node_place(const Environment& variables);

}  // namespace muster::cluster
