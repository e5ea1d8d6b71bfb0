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

TEST(ClusterEnvironment, NobodyMeansAlone) {
  check_readings({{{}, "none 0/1 local 0/1 node 0/1"},
                  {{{"PATH", "/bin"}, {"RANK", ""}, {"WORLD_SIZE", ""}}, "none 0/1 local 0/1 node 0/1"},
                  {{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}, "none 0/1 local 0/1 node 0/1"}});
}

TEST(ClusterEnvironment, TheInnerLauncherCounts) {
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
  EXPECT_EQ(read_cluster_environment(slurm).launcher, LauncherKind::slurm);
  EXPECT_EQ(read_cluster_environment(both(slurm, open_mpi)).launcher, LauncherKind::open_mpi);
  EXPECT_EQ(read_cluster_environment(both(slurm, kOneByTorchrun)).launcher, LauncherKind::torchrun);
  EXPECT_EQ(read_cluster_environment(both(both(slurm, open_mpi), {{"RANK", "0"}, {"WORLD_SIZE", "1"}})).launcher,
            LauncherKind::environment);
  EXPECT_EQ(read_cluster_environment(with(kOneByTorchrun, {{"MUSTER_JOB", "outer"}})).launcher, LauncherKind::torchrun);
  EXPECT_EQ(
      read_cluster_environment(with(kOneByTorchrun, {{"MUSTER_JOB", "inner"}, {"TORCHELASTIC_RUN_ID", ""}})).launcher,
      LauncherKind::muster);
  // srun --mpi=pmi2 sets both, and SLURM knows more; MPICH's mpiexec inside a SLURM job counts its own ranks.
  EXPECT_EQ(read_cluster_environment(both(slurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})).launcher,
            LauncherKind::slurm);
  EXPECT_EQ(read_cluster_environment(both(slurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).launcher, LauncherKind::pmi);
}

TEST(ClusterEnvironment, HalfSetVariablesAreMU020) {
  check_refusals({{{{"RANK", "0"}}, "MU020", {"RANK", "WORLD_SIZE"}},
                  {{{"WORLD_SIZE", "2"}}, "MU020", {"RANK", "WORLD_SIZE"}},
                  {{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}, "MU020", {"LOCAL_RANK, LOCAL_WORLD_SIZE are"}}});
}

TEST(ClusterEnvironment, AnUnknownLauncherIsMU023) {
  for (std::string name : {"PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE", "FLUX_TASK_RANK", "PRTE_RANK"})
    check_refusals({{{{name, "0"}}, "MU023", {name, "RANK, WORLD_SIZE", "unset " + name}}});
}

TEST(ClusterEnvironment, TheProcessOfThisTestIsRead) {
  EXPECT_EQ(words(read_cluster_environment()), words(read_cluster_environment(Environment::of_process())));
}

TEST(ClusterEnvironment, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(LauncherKind::custom); ++kind)
    EXPECT_NE(to_string(static_cast<LauncherKind>(kind)), "");
}

/// Reads GRID_RANK and GRID_SIZE.
std::optional<ClusterEnvironment> read_grid(const Environment& variables) {
  if (!variables.has("GRID_RANK")) return std::nullopt;
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = std::stoi(*variables.find("GRID_RANK"));
  cluster.world_size = cluster.local_world_size = std::stoi(*variables.find("GRID_SIZE"));
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = "grid0";
  cluster.main_port = 29500;
  return cluster;
}

TEST(ClusterReader, IsAskedFirstAndMayDecline) {
  EXPECT_EQ(words(read_cluster_environment(kOneByTorchrun, read_grid)),
            words(read_cluster_environment(kOneByTorchrun)));
  EXPECT_EQ(words(read_cluster_environment(kOneByTorchrun, {})), words(read_cluster_environment(kOneByTorchrun)));
  EXPECT_EQ(words(read_cluster_environment(with(kOneByTorchrun, {{"GRID_RANK", "1"}, {"GRID_SIZE", "2"}}), read_grid)),
            "custom 1/2 local 1/2 node 0/1 tcp grid0:29500");
  const ClusterReader named = [](const Environment&) {
    ClusterEnvironment cluster;
    cluster.launcher = LauncherKind::slurm;
    return std::optional(cluster);
  };
  EXPECT_EQ(words(read_cluster_environment({}, named)), "slurm 0/1 local 0/1 node 0/1");
}

TEST(ClusterReader, ResultsAreChecked) {
  const auto refused = [](void (*change)(ClusterEnvironment&)) -> std::string {
    ClusterEnvironment cluster = *read_grid({{"GRID_RANK", "1"}, {"GRID_SIZE", "2"}});
    change(cluster);
    try {
      return words(read_cluster_environment({}, [&](const Environment&) { return std::optional(cluster); }));
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  const auto starts = [](const std::string& text, const std::string& wanted) {
    EXPECT_TRUE(text.starts_with(wanted)) << text;
  };
  starts(refused([](ClusterEnvironment& c) { c.rank = 2; }),
         "MU022: the program's cluster reader contradicts itself: rank is 2");
  starts(refused([](ClusterEnvironment& c) { c.local_world_size = 3; }),
         "MU022: the program's cluster reader contradicts itself");
  starts(refused([](ClusterEnvironment& c) { c.rank = c.local_rank = -1; }),
         "MU022: the program's cluster reader returned rank -1");
  starts(refused([](ClusterEnvironment& c) { c.node_rank = 1; }),
         "MU022: the program's cluster reader contradicts itself: node_rank");
  starts(refused([](ClusterEnvironment& c) { c.nodes = 3; }),
         "MU022: the program's cluster reader contradicts itself: nodes is 3");
  for (const auto& change :
       {+[](ClusterEnvironment& c) { c.rendezvous = RendezvousKind::none; },
        +[](ClusterEnvironment& c) { c.main_address.clear(); }, +[](ClusterEnvironment& c) { c.main_port = 0; },
        +[](ClusterEnvironment& c) { c.rendezvous = RendezvousKind::file; }})
    starts(refused(change), "MU340: the program's cluster reader returned rank 1 of 2 ranks, but not where");
  starts(refused([](ClusterEnvironment& c) {
           c.local_rank = 0, c.local_world_size = 1, c.node_rank = 1, c.nodes = 2;
           c.rendezvous = RendezvousKind::file, c.store_path = "store";
         }),
         "MU340: the program's cluster reader returned 2 nodes");
}

}  // namespace
}  // namespace muster::cluster::testing
