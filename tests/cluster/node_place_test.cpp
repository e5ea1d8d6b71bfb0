#include "cluster/cases.h"
#include "cluster/reading.h"

namespace muster::cluster::testing {
namespace {

/// "source: node R of N at HOST:PORT, D each", with "-" for what is not said.
std::string place(const Environment& variables) {
  const auto found = find_node_place(variables);
  if (!found) return "none";
  const auto number = [](std::optional<int> value) { return value ? std::to_string(*value) : std::string("-"); };
  const auto word = [](const std::string& text) { return text.empty() ? "-" : text; };
  return found->source + ": node " + number(found->node_rank) + " of " + number(found->nodes) + " at " +
         word(found->main_address) + ":" + std::to_string(found->main_port) + ", " + word(found->devices) + " each";
}

TEST(NodePlace, ClustersThatStartEveryNodeAlikeSayAll) {
  const Environment kubeflow{{"PET_NNODES", "2"},
                             {"PET_NPROC_PER_NODE", "8"},
                             {"PET_NODE_RANK", "1"},
                             {"PET_MASTER_ADDR", "m"},
                             {"PET_MASTER_PORT", "29500"}};
  EXPECT_EQ(place(kubeflow), "PET_NNODES: node 1 of 2 at m:29500, 8 each");
  EXPECT_EQ(place(with(kubeflow, {{"PET_NPROC_PER_NODE", "auto"}})), "PET_NNODES: node 1 of 2 at m:29500, auto each");
  EXPECT_EQ(place(with(kubeflow, {{"PET_NPROC_PER_NODE", "gpu"}})), "PET_NNODES: node 1 of 2 at m:29500, - each");
  EXPECT_EQ(place({{"SM_HOSTS", R"(["algo-2","algo-1"])"}, {"SM_CURRENT_HOST", "algo-2"}}),
            "SM_HOSTS: node 1 of 2 at algo-1:0, - each");
}

TEST(NodePlace, OthersSayWhichNodeThisIs) {
  const CaseFolder folder;
  const auto hosts = folder.write("hosts", "alpha\nbeta\n");
  EXPECT_EQ(place({{"JOB_COMPLETION_INDEX", "3"}}), "JOB_COMPLETION_INDEX: node 3 of - at -:0, - each");
  EXPECT_EQ(place({{"PBS_NODENUM", "1"}, {"PBS_NODEFILE", hosts}, {"PBS_JOBID", "12.s"}}),
            "PBS_NODENUM: node 1 of - at alpha:15012, - each");
  const Environment slurm{{"SLURM_PROCID", "1"},  {"SLURM_NTASKS", "2"},
                          {"SLURM_NODEID", "1"},  {"SLURM_JOB_NODELIST", "n[1-2]"},
                          {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "5"}};
  EXPECT_EQ(place(slurm), "SLURM_NODEID: node 1 of - at n1:15005, - each");
  EXPECT_EQ(place(with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", ""}})), "none") << "a batch script";
  EXPECT_EQ(place({}), "none");
}

}  // namespace
}  // namespace muster::cluster::testing
