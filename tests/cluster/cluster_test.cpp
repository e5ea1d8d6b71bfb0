#include "muster/cluster/cluster.h"

#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

const Environment kOneByTorchrun{{"RANK", "0"},
                                 {"WORLD_SIZE", "1"},
                                 {"LOCAL_RANK", "0"},
                                 {"LOCAL_WORLD_SIZE", "1"},
                                 {"TORCHELASTIC_RUN_ID", "r"},
                                 {"MASTER_ADDR", "a"},
                                 {"MASTER_PORT", "1"}};

TEST(Cluster, NobodyMeansAlone) {
  check_readings({{{}, "none 0/1 local 0/1 node 0/1"},
                  {{{"PATH", "/bin"}, {"RANK", ""}, {"WORLD_SIZE", ""}}, "none 0/1 local 0/1 node 0/1"},
                  {{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, "none 0/1 local 0/1 node 0/1"}});
}

TEST(Cluster, TheInnerLauncherCounts) {
  Environment slurm{{"SLURM_NTASKS", "2"},  {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"},     {"SLURM_NODEID", "0"},
                    {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NAME", "train"}};
  Environment open_mpi{{"OMPI_COMM_WORLD_RANK", "0"},
                       {"OMPI_COMM_WORLD_SIZE", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  auto both = [](Environment a, const Environment& b) {
    for (const auto& [name, value] : b.variables()) a.set(name, value);
    return a;
  };
  EXPECT_EQ(read_cluster(slurm).launcher, LauncherKind::slurm);
  EXPECT_EQ(read_cluster(both(slurm, open_mpi)).launcher, LauncherKind::open_mpi);
  EXPECT_EQ(read_cluster(both(slurm, kOneByTorchrun)).launcher, LauncherKind::torchrun);
  EXPECT_EQ(read_cluster(both(both(slurm, open_mpi), {{"RANK", "0"}, {"WORLD_SIZE", "1"}})).launcher,
            LauncherKind::environment);
  EXPECT_EQ(read_cluster(with(kOneByTorchrun, {{"MUSTER_JOB", "outer"}})).launcher, LauncherKind::torchrun);
  EXPECT_EQ(read_cluster(with(kOneByTorchrun, {{"MUSTER_JOB", "inner"}, {"TORCHELASTIC_RUN_ID", ""}})).launcher,
            LauncherKind::muster);
  // srun --mpi=pmi2 sets both, and SLURM knows more; MPICH's mpiexec inside a SLURM job counts its own ranks.
  EXPECT_EQ(read_cluster(both(slurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})).launcher, LauncherKind::slurm);
  EXPECT_EQ(read_cluster(both(slurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).launcher, LauncherKind::pmi);
}

TEST(Cluster, HalfSetVariablesAreMU020) {
  check_refusals({{{{"RANK", "0"}}, "MU020", {"RANK", "WORLD_SIZE"}},
                  {{{"WORLD_SIZE", "2"}}, "MU020", {"RANK", "WORLD_SIZE"}},
                  {{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}, "MU020", {"LOCAL_RANK, LOCAL_WORLD_SIZE are"}}});
}

TEST(Cluster, AnUnknownLauncherIsMU023) {
  for (std::string name :
       {"PMIX_RANK", "JSM_NAMESPACE_RANK", "PALS_RANKID", "ALPS_APP_PE", "FLUX_TASK_RANK", "PRTE_RANK"})
    check_refusals({{{{name, "0"}}, "MU023", {name, "RANK, WORLD_SIZE", "unset " + name}}});
}

TEST(Cluster, TheProcessOfThisTestIsRead) {
  EXPECT_EQ(words(read_cluster()), words(read_cluster(Environment::of_process())));
}

TEST(Cluster, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(LauncherKind::slurm); ++kind)
    EXPECT_NE(to_string(static_cast<LauncherKind>(kind)), "");
}

}  // namespace
}  // namespace muster::cluster::testing
