#include "cluster/cases.h"

namespace muster::cluster::testing {
namespace {

/// As Debian's Open MPI 4.1 sets them.
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"PMIX_RANK", "1"},
                           {"PMIX_NAMESPACE", "1927086081"},
                           {"OMPI_MCA_orte_precondition_transports", "a89e71251fc7a27a-1a13d9953647c56a"}};

const Environment kPmi{{"PMI_RANK", "3"},
                       {"PMI_SIZE", "4"},
                       {"MPI_LOCALRANKID", "1"},
                       {"MPI_LOCALNRANKS", "2"},
                       {"PMI_KVSNAME", "kvs_1_0"}};

TEST(Mpi, OneNodeMeetsInAFileNamedByTheJob) {
  check_readings({
      {kOpenMpi, "open_mpi 1/2 local 1/2 node 0/1 file 1927086081-a89e71251fc7a27a-1a13d9953647c56a.store"},
      {with(kOpenMpi, {{"OMPI_MCA_orte_precondition_transports", ""},
                       {"PMIX_NAMESPACE", "prterun-alpha-12@1"},
                       {"TMPDIR", "/scratch"}}),
       "open_mpi 1/2 local 1/2 node 0/1 file prterun-alpha-12_1.store"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                       {"OMPI_COMM_WORLD_RANK", "0"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       "open_mpi 0/1 local 0/1 node 0/1"},
      {{{"MV2_COMM_WORLD_RANK", "0"},
        {"MV2_COMM_WORLD_SIZE", "2"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "2"},
        {"MPISPAWN_ID", "7"}},
       "mvapich 0/2 local 0/2 node 0/1 file 7.store"},
      {with(kPmi, {{"MPI_LOCALNRANKS", ""}, {"MPI_LOCALRANKID", ""}}), "pmi 3/4 local 3/4 node 0/1 file kvs_1_0.store"},
  });
}

TEST(Mpi, AnAddressCountsMoreThanTheFile) {
  check_readings({
      {with(kOpenMpi, {{"MASTER_ADDR", "alpha"}}), "open_mpi 1/2 local 1/2 node 0/1 tcp alpha:29500"},
      {with(kPmi, {{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "4711"}}), "pmi 3/4 local 1/2 node 1/2 tcp alpha:4711"},
  });
}

TEST(Mpi, NodesAreFoundForBothWaysToDealOutRanks) {
  auto node_of = [](const char* rank, const char* local) {
    return read_cluster_environment(with(kPmi, {{"PMI_RANK", rank}, {"MPI_LOCALRANKID", local}, {"MASTER_ADDR", "a"}}))
        .node_rank;
  };
  EXPECT_EQ(node_of("2", "0"), 1) << "node by node: 0 1 | 2 3";
  EXPECT_EQ(node_of("2", "1"), 0) << "round robin: 0 2 | 1 3";
}

TEST(Mpi, OnSeveralNodesTheJobSystemNamesTheFirstHost) {
  const CaseFolder folder;
  const auto hosts = folder.write("hosts", "alpha\nalpha\nbeta\nbeta\n");
  check_readings({
      {with(kPmi, {{"PBS_NODEFILE", hosts}, {"PBS_JOBID", "1234.server"}}),
       "pmi 3/4 local 1/2 node 1/2 tcp alpha:16234"},
      {with(kPmi, {{"LSB_DJOB_RANKFILE", hosts}, {"LSB_JOBID", "7"}, {"MASTER_PORT", "9"}}),
       "pmi 3/4 local 1/2 node 1/2 tcp alpha:9"},
      {with(kPmi, {{"SLURM_JOB_NODELIST", "n[3-4]"}, {"SLURM_JOB_ID", "20001"}}),
       "pmi 3/4 local 1/2 node 1/2 tcp n3:15001"},
      {with(kPmi, {{"PBS_NODEFILE", hosts}, {"MASTER_ADDR", "gamma"}}), "pmi 3/4 local 1/2 node 1/2 tcp gamma:29500"},
  });
}

TEST(Mpi, SeveralNodesWithoutAddressAreMU024) {
  check_refusals({
      {kPmi, "MU024", {"4 ranks on 2 nodes", "PMI_SIZE", "MPI_LOCALNRANKS", "MASTER_ADDR"}},
      {with(kOpenMpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_orte_precondition_transports", ""}}),
       "MU024",
       {"no name of the job", "MASTER_ADDR"}},
  });
}

TEST(Mpi, HalfSetOrContradictingVariablesAreNamed) {
  check_refusals({
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "MU020", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}},
      {{{"PMI_SIZE", "2"}}, "MU020", {"PMI_RANK"}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", ""}}), "MU020", {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}),
       "MU022",
       {"OMPI_COMM_WORLD_RANK is 2", "OMPI_COMM_WORLD_SIZE is 2"}},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "two"}}), "MU021", {"OMPI_COMM_WORLD_SIZE is 'two'"}},
  });
}

}  // namespace
}  // namespace muster::cluster::testing
