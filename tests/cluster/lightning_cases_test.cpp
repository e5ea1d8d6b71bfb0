#include "cluster/cases.h"

/// The cluster environments of Lightning, case by case: what it reads is read here, too, and gives the same ranks.
/// Where it guesses, Muster asks; those cases stand in the second table.
namespace muster::cluster::testing {
namespace {

const Environment kElastic{
    {"TORCHELASTIC_RUN_ID", "1"}, {"RANK", "3"},       {"WORLD_SIZE", "4"},  {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},    {"GROUP_RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "20"}};
const Environment kSrun{{"SLURM_NTASKS", "20"},      {"SLURM_PROCID", "12"},
                        {"SLURM_LOCALID", "2"},      {"SLURM_NODEID", "1"},
                        {"SLURM_NNODES", "2"},       {"SLURM_NTASKS_PER_NODE", "10"},
                        {"SLURM_STEP_ID", "0"},      {"SLURM_NODELIST", "10.1.1.1, 10.1.1.2"},
                        {"SLURM_JOB_ID", "0001234"}, {"SLURM_JOB_NAME", "train"}};

/// One rank of LSF, whose job runs on the hosts of the file.
Environment lsf(const CaseFolder& folder) {
  return {{"LSB_JOBID", "1234"},
          {"LSB_DJOB_RANKFILE", folder.write("rankfile", "launch\n10.10.10.0\n10.10.10.1\n")},
          {"JSM_NAMESPACE_RANK", "1"},
          {"JSM_NAMESPACE_SIZE", "2"},
          {"JSM_NAMESPACE_LOCAL_RANK", "0"}};
}

TEST(LightningCases, AreReadAlike) {
  const CaseFolder folder;
  check_readings({
      // Its own launcher: LOCAL_RANK says that processes are started from outside.
      {{}, "none 0/1 local 0/1 node 0/1"},
      {{{"MASTER_ADDR", "1.2.3.4"}, {"MASTER_PORT", "500"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}},
       "environment 1/2 local 1/2 node 0/1 tcp 1.2.3.4:500"},
      {{{"MASTER_ADDR", "h"},
        {"MASTER_PORT", "5"},
        {"WORLD_SIZE", "6"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"NODE_RANK", "1"}},
       "environment 5/6 local 2/3 node 1/2 tcp h:5"},
      {{{"MASTER_ADDR", "h"},
        {"MASTER_PORT", "5"},
        {"WORLD_SIZE", "6"},
        {"LOCAL_RANK", "2"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"GROUP_RANK", "1"}},
       "environment 5/6 local 2/3 node 1/2 tcp h:5"},
      // TorchElastic
      {kElastic, "torchrun 3/4 local 1/2 node 1/2 tcp h:20"},
      // SLURM
      {kSrun, "slurm 12/20 local 2/10 node 1/2 tcp 10.1.1.1:16234"},
      {with(kSrun, {{"SLURM_JOB_ID", ""}}), "slurm 12/20 local 2/10 node 1/2 tcp 10.1.1.1:12910"},
      {with(kSrun, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "21"}}), "slurm 12/20 local 2/10 node 1/2 tcp h:21"},
      {with(kSrun, {{"SLURM_NODELIST", "n[3,1], m"}}), "slurm 12/20 local 2/10 node 1/2 tcp n3:16234"},
      {with(kSrun, {{"SLURM_JOB_NAME", "bash"}}), "none 0/1 local 0/1 node 0/1"},
      {with(kSrun, {{"SLURM_JOB_NAME", "interactive"}}), "none 0/1 local 0/1 node 0/1"},
      // LSF
      {lsf(folder), "lsf 1/2 local 0/1 node 1/2 tcp 10.10.10.0:10234"},
      // Kubeflow: one process per pod, whose node is its rank
      {{{"MASTER_ADDR", "1.2.3.4"}, {"MASTER_PORT", "500"}, {"WORLD_SIZE", "20"}, {"RANK", "1"}},
       "environment 1/20 local 0/1 node 1/20 tcp 1.2.3.4:500"},
      // MPI: Lightning asks MPI, Muster the variables of mpirun
      {{{"OMPI_COMM_WORLD_RANK", "3"},
        {"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MASTER_ADDR", "h"}},
       "open_mpi 3/4 local 1/2 node 1/2 tcp h:29500"},
  });
}

TEST(LightningCases, WhereItGuessesMusterAsks) {
  const CaseFolder folder;
  check_refusals({
      // 127.0.0.1 and 12910, with a warning: the ranks of several nodes would never meet.
      {with(kElastic, {{"MASTER_ADDR", ""}}), "MU020", {"MASTER_ADDR"}},
      {with(kElastic, {{"MASTER_PORT", ""}}), "MU020", {"MASTER_PORT"}},
      {{{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, "MU020", {"MASTER_ADDR"}},
      // More than one task without tasks per node is an error in both.
      {with(kSrun, {{"SLURM_NTASKS_PER_NODE", ""}}), "MU020", {"SLURM_NTASKS_PER_NODE"}},
      // LSF without its variables is an error in both.
      {with(lsf(folder), {{"JSM_NAMESPACE_SIZE", ""}}), "MU020", {"JSM_NAMESPACE_SIZE"}},
      {with(lsf(folder), {{"JSM_NAMESPACE_LOCAL_RANK", ""}}), "MU020", {"JSM_NAMESPACE_LOCAL_RANK"}},
      {with(lsf(folder), {{"LSB_DJOB_RANKFILE", ""}, {"JSM_NAMESPACE_LOCAL_SIZE", "1"}}),
       "MU024",
       {"LSB_DJOB_RANKFILE"}},
  });
}

TEST(LightningCases, FirstHosts) {
  for (const auto& [list, host] :
       std::vector<std::pair<std::string, std::string>>{{"node[11-14]", "node11"},
                                                        {"10.2.0.[070, 100-110]", "10.2.0.070"},
                                                        {"node[8,2-3]", "node8"},
                                                        {"x1,x2,x3", "x1"},
                                                        {"x1 x2", "x1"}})
    EXPECT_EQ(read_cluster_environment(with(kSrun, {{"SLURM_NODELIST", list}})).main_address, host);
}

}  // namespace
}  // namespace muster::cluster::testing
