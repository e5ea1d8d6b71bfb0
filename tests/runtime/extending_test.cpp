#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "muster/accelerator.h"
#include "muster/cluster/cluster.h"
#include "muster/testing/thrown.h"
#include "ranks.h"

namespace muster::runtime::testing {
namespace {

using muster::testing::as_ranks;

/// Reads GRID_RANK and GRID_SIZE, for ranks on one node.
std::optional<Cluster> read_grid(const Environment& variables) {
  if (!variables.has("GRID_RANK")) return std::nullopt;
  Cluster cluster;
  cluster.rank = cluster.local_rank = std::stoi(*variables.find("GRID_RANK"));
  cluster.world_size = cluster.local_world_size = std::stoi(*variables.find("GRID_SIZE"));
  cluster.rendezvous = RendezvousKind::file;
  cluster.job = "grid" + std::to_string(getppid());
  cluster.store_path = cluster.job + ".store";
  return cluster;
}

TEST(ClusterReader, MakesTheRanksOfAProgram) {
  as_ranks(2, [] {
    const auto mpi = [](const char* name) { return std::string(std::getenv(name)); };
    // The other way around than mpirun says, so that a reader that is not asked cannot pass.
    setenv("GRID_RANK", std::to_string(1 - std::stoi(mpi("OMPI_COMM_WORLD_RANK"))).c_str(), 1);
    setenv("GRID_SIZE", "2", 1);
    Accelerator accelerator({.cluster_reader = read_grid});
    EXPECT_EQ(std::to_string(accelerator.process_index()), mpi("GRID_RANK"));
    EXPECT_EQ(accelerator.num_processes(), 2);
    const auto ranks = accelerator.gather(torch::full({1}, accelerator.process_index()));
    EXPECT_EQ(ranks.sum().item<int>(), 1);
    EXPECT_NE(accelerator.plan().find("told by custom"), std::string::npos) << accelerator.plan();
  });
}

}  // namespace
}  // namespace muster::runtime::testing
