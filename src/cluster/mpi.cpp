#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

/// A family of variables of an MPI launcher; names that it does not set are empty.
struct Family {
  LauncherKind kind;
  RankNames names;
  std::string_view launcher;
};

void find_node(ClusterEnvironment& cluster) {
  int local = cluster.local_world_size;
  cluster.nodes = (cluster.world_size + local - 1) / local;
  // MPI does not tell whether ranks are placed node by node or round-robin.
  bool round_robin = cluster.rank % local != cluster.local_rank && cluster.rank / cluster.nodes == cluster.local_rank;
  cluster.node_rank = round_robin ? cluster.rank % cluster.nodes : cluster.rank / local;
}

ClusterEnvironment read_family(const Environment& variables, const Family& family, const std::string& job) {
  const auto& names = family.names;
  ClusterEnvironment cluster;
  cluster.launcher = family.kind;
  cluster.job = job;
  cluster.rank = need_number(variables, names.rank, names.world_size);
  cluster.world_size = need_number(variables, names.world_size, names.rank, 1);
  bool local = variables.has(names.local_rank) || variables.has(names.local_world_size);
  cluster.local_rank = local ? need_number(variables, names.local_rank, names.local_world_size) : cluster.rank;
  cluster.local_world_size =
      local ? need_number(variables, names.local_world_size, names.local_rank, 1) : cluster.world_size;
  check_ranks(cluster, names);
  find_node(cluster);
  cluster.store_prefix = "muster/0";
  if (cluster.world_size == 1 || read_main_address(variables, kDefaultPort, cluster)) return cluster;
  // mpirun places rank 0 on the first host from the job system.
  if (auto first = cluster.nodes > 1 ? first_host_of_job(variables) : std::nullopt) {
    cluster.rendezvous = RendezvousKind::tcp;
    cluster.main_address = first->host;
    cluster.main_port = read_number(variables, kMainPort, 1, 65535).value_or(first->port);
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
