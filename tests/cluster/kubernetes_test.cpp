#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

const Environment kIndexed{{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "train-0.train"}};

/// As Kubeflow's trainer sets them in the second of two pods.
const Environment kKubeflow{
    {"PET_NNODES", "2"},        {"PET_NPROC_PER_NODE", "1"},         {"PET_NODE_RANK", "1"},
    {"PET_MASTER_PORT", "400"}, {"PET_MASTER_ADDR", "job-node-0-0"}, {"JOB_COMPLETION_INDEX", "1"}};

TEST(Kubernetes, TheIndexOfAPodIsItsRank) {
  check_readings({
      {kIndexed, "kubernetes 2/3 local 0/1 node 2/3 tcp train-0.train:29500"},
      {with(kIndexed, {{"MASTER_PORT", "4"}}), "kubernetes 2/3 local 0/1 node 2/3 tcp train-0.train:4"},
      {with(kIndexed, {{"RANK", "1"}, {"MASTER_PORT", "4"}}), "environment 1/3 local 0/1 node 1/3 tcp train-0.train:4"},
      {{{"JOB_COMPLETION_INDEX", "0"}, {"WORLD_SIZE", "1"}}, "kubernetes 0/1 local 0/1 node 0/1"},
      // Pods of such a job may also have nothing to do with each other.
      {{{"JOB_COMPLETION_INDEX", "2"}}, "none 0/1 local 0/1 node 0/1"},
  });
  check_refusals({
      {with(kIndexed, {{"MASTER_ADDR", ""}}), "MU024", {"JOB_COMPLETION_INDEX", "MASTER_ADDR"}},
      {with(kIndexed, {{"JOB_COMPLETION_INDEX", "3"}}), "MU022", {"JOB_COMPLETION_INDEX is 3", "WORLD_SIZE is 3"}},
  });
}

TEST(Kubernetes, KubeflowsVariablesAreRead) {
  check_readings({
      {kKubeflow, "kubernetes 1/2 local 0/1 node 1/2 tcp job-node-0-0:400"},
      {with(kKubeflow, {{"PET_NODE_RANK", ""}, {"PET_NNODES", "2:2"}}),
       "kubernetes 1/2 local 0/1 node 1/2 tcp job-node-0-0:400"},
      {with(kKubeflow, {{"PET_MASTER_ADDR", ""}, {"PET_MASTER_PORT", ""}, {"PET_RDZV_ENDPOINT", "first:401"}}),
       "kubernetes 1/2 local 0/1 node 1/2 tcp first:401"},
      {{{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}}, "none 0/1 local 0/1 node 0/1"},
      // PyTorchJob of its first version sets those of torch.distributed itself, which say more.
      {with(kKubeflow, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}, {"MASTER_PORT", "5"}}),
       "environment 0/2 local 0/1 node 0/2 tcp m:5"},
  });
}

TEST(Kubernetes, SeveralRanksOfAPodAreNotOneProcess) {
  check_refusals({
      {with(kKubeflow, {{"PET_NPROC_PER_NODE", "8"}}), "MU493", {"PET_NPROC_PER_NODE is 8", "muster run"}},
      {with(kKubeflow, {{"PET_NPROC_PER_NODE", "auto"}}), "MU493", {"PET_NPROC_PER_NODE is auto"}},
      {with(kKubeflow, {{"PET_NNODES", "1:4"}}), "MU021", {"PET_NNODES is '1:4'"}},
      {with(kKubeflow, {{"PET_NODE_RANK", ""}, {"JOB_COMPLETION_INDEX", ""}}), "MU020", {"PET_NODE_RANK"}},
      {with(kKubeflow, {{"PET_MASTER_ADDR", ""}}), "MU024", {"PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"}},
  });
}

}  // namespace
}  // namespace muster::cluster::testing
