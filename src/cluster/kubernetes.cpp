#include "base/log.h"
#include "base/variables.h"
#include "muster/base/error.h"
#include "reading.h"

namespace muster::cluster {
namespace {

using log::str;

/// The only process on its node.
ClusterEnvironment one_of(int rank, int world_size) {
  ClusterEnvironment cluster;
  cluster.launcher = LauncherKind::kubernetes;
  cluster.rank = cluster.node_rank = rank;
  cluster.world_size = cluster.nodes = world_size;
  cluster.job = "kubernetes";
  cluster.store_prefix = "muster/0";
  return cluster;
}

void refuse_several_ranks(const Environment& variables) {
  const auto ranks = variables.find("PET_NPROC_PER_NODE").value_or("1");
  if (ranks != "1")
    throw ConfigError("MU493", str("PET_NPROC_PER_NODE is ", ranks,
                                   ", but this process was started by itself; start the program by muster run, which "
                                   "reads the PET_ variables and starts the ranks of this pod"));
}

}  // namespace

ClusterEnvironment read_indexed_job(const Environment& variables) {
  auto cluster = one_of(need_number(variables, kCompletionIndex, kWorldSize),
                        need_number(variables, kWorldSize, kCompletionIndex, 1));
  check_ranks(cluster, {kCompletionIndex, kWorldSize, kLocalRank, kLocalWorldSize});
  if (cluster.world_size > 1 && !read_main_address(variables, kDefaultPort, cluster))
    throw ConfigError("MU024", str(kCompletionIndex, " is ", cluster.rank, " and WORLD_SIZE ", cluster.world_size,
                                   ", but MASTER_ADDR is not set; set it to the host of the pod with index 0, such as "
                                   "train-0.train (muster submit kubernetes writes such a job)"));
  return cluster;
}

ClusterEnvironment read_kubeflow(const Environment& variables) {
  refuse_several_ranks(variables);
  const auto place = *find_node_place(variables);
  // A single pod: its program may start ranks itself.
  if (place.nodes == 1) return {};
  if (!place.node_rank)
    throw ConfigError("MU020",
                      "variable PET_NNODES is set, but neither PET_NODE_RANK nor JOB_COMPLETION_INDEX is; "
                      "set PET_NODE_RANK to the number of this pod, from 0");
  auto cluster = one_of(*place.node_rank, *place.nodes);
  check_ranks(cluster, {"PET_NODE_RANK", "PET_NNODES", kLocalRank, kLocalWorldSize});
  if (place.main_address.empty())
    throw ConfigError("MU024", str("PET_NNODES is ", cluster.nodes,
                                   ", but neither PET_MASTER_ADDR nor PET_RDZV_ENDPOINT is set; set PET_MASTER_ADDR "
                                   "to the host of the first pod, and PET_MASTER_PORT"));
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = place.main_address;
  cluster.main_port = place.main_port == 0 ? kDefaultPort : place.main_port;
  return cluster;
}

}  // namespace muster::cluster
