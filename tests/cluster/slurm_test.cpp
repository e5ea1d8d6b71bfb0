#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

/// As srun sets them for one of six tasks on two nodes.
const Environment kSlurm{{"SLURM_PROCID", "4"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_NNODES", "2"},
                         {"SLURM_JOB_ID", "123456"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "6"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                         {"SLURM_STEP_NODELIST", "node[07-08]"},
                         {"SLURM_JOB_NODELIST", "node[07-12]"},
                         {"SLURM_JOB_NAME", "train"}};

const Environment kOneNode = with(kSlurm, {{"SLURM_PROCID", "1"},
                                           {"SLURM_NODEID", "0"},
                                           {"SLURM_NTASKS", "3"},
                                           {"SLURM_NNODES", "1"},
                                           {"SLURM_STEP_NUM_TASKS", "3"},
                                           {"SLURM_STEP_NUM_NODES", "1"},
                                           {"SLURM_STEP_TASKS_PER_NODE", "3"}});

TEST(Slurm, AStepIsRead) {
  check_readings({
      {kSlurm, "slurm 4/6 local 1/3 node 1/2 tcp node07:18456"},
      {with(kSlurm, {{"SLURM_STEP_ID", "2"}}), "slurm 4/6 local 1/3 node 1/2 tcp node07:18458"},
      {with(kSlurm, {{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "5"}}), "slurm 4/6 local 1/3 node 1/2 tcp alpha:5"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4,2"}}), "slurm 4/6 local 1/2 node 1/2 tcp node07:18456"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}, {"SLURM_NTASKS_PER_NODE", "3"}, {"SLURM_STEP_NODELIST", ""}}),
       "slurm 4/6 local 1/3 node 1/2 tcp node07:18456"},
      {with(kSlurm, {{"SLURM_JOB_ID", ""}}), "slurm 4/6 local 1/3 node 1/2 tcp node07:12910"},
      {kOneNode, "slurm 1/3 local 1/3 node 0/1 file 123456-0-0.store"},
      {with(kOneNode, {{"SLURM_RESTART_COUNT", "1"}, {"SLURM_STEP_ID", "3"}}),
       "slurm 1/3 local 1/3 node 0/1 file 123456-3-1.store restarts 1"},
      {with(kOneNode, {{"SLURM_PROCID", "0"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_NTASKS", "1"},
                       {"SLURM_STEP_NUM_TASKS", "1"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
       "slurm 0/1 local 0/1 node 0/1"},
  });
}

TEST(Slurm, ShellsAndBatchScriptsAreNoRanks) {
  const std::string alone = "none 0/1 local 0/1 node 0/1";
  Environment batch{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "0"}, {"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NAME", "train"}};
  Environment shell{{"SLURM_NTASKS", "1"},      {"SLURM_PROCID", "0"},     {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "0"},      {"SLURM_STEP_ID", "0"},    {"SLURM_STEP_NUM_TASKS", "1"},
                    {"SLURM_JOB_NAME", "bash"}, {"SLURM_PTY_PORT", "4000"}};
  check_readings({
      {batch, alone},
      {{{"SLURM_NTASKS", "8"}, {"SLURM_JOB_NAME", "interactive"}}, alone},
      {shell, alone},
      {with(shell, {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}}), alone},
      // salloc names its job "interactive"; srun in it starts ranks all the same.
      {with(kOneNode, {{"SLURM_JOB_NAME", "interactive"}}), "slurm 1/3 local 1/3 node 0/1 file 123456-0-0.store"},
  });
  EXPECT_NE(read_cluster_environment(batch).note.find("SLURM_NTASKS is 8"), std::string::npos);
  EXPECT_EQ(read_cluster_environment(shell).note, "");
}

TEST(Slurm, HalfSetOrContradictingVariablesAreNamed) {
  check_refusals({
      {with(kSlurm, {{"SLURM_LOCALID", ""}}), "MU020", {"SLURM_LOCALID"}},
      {with(kSlurm, {{"SLURM_NODEID", ""}}), "MU020", {"SLURM_NODEID"}},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", ""}}), "MU020", {"SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}},
      {with(kSlurm, {{"SLURM_PROCID", "6"}}), "MU022", {"SLURM_PROCID is 6", "SLURM_STEP_NUM_TASKS is 6"}},
      {with(kSlurm, {{"SLURM_NODEID", "2"}}), "MU022", {"SLURM_NODEID is 2", "SLURM_STEP_NUM_NODES is 2"}},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", ""}, {"SLURM_JOB_NODELIST", ""}}),
       "MU024",
       {"SLURM_JOB_NODELIST", "MASTER_ADDR"}},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "node[07"}}), "MU025", {"SLURM_STEP_NODELIST", "node[07"}},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "3(x"}}), "MU025", {"SLURM_STEP_TASKS_PER_NODE", "3(x"}},
  });
}

}  // namespace
}  // namespace muster::cluster::testing
