// The code of extending.md.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include <muster/accelerator.h>
#include <muster/cluster/cluster.h>
#include <torch/torch.h>

static std::optional<muster::Cluster> read_grid(const muster::Environment& variables) {
  if (!variables.has("GRID_RANK")) return std::nullopt;  // not ours: Muster's own readers go on
  const auto number = [&](const char* name) { return std::stoi(variables.find(name).value()); };
  muster::Cluster cluster;
  cluster.rank = number("GRID_RANK");
  cluster.world_size = number("GRID_SIZE");
  cluster.local_world_size = number("GRID_PER_NODE");
  cluster.local_rank = cluster.rank % cluster.local_world_size;
  cluster.node_rank = cluster.rank / cluster.local_world_size;
  cluster.nodes = cluster.world_size / cluster.local_world_size;
  cluster.rendezvous = muster::RendezvousKind::tcp;
  cluster.main_address = variables.find("GRID_HEAD").value();
  cluster.main_port = 29500;
  return cluster;
}

static void own_launcher() {
  muster::Accelerator accelerator({.cluster_reader = read_grid});
  accelerator.print("{} ranks", accelerator.num_processes());

  const muster::Environment variables{
      {"GRID_HEAD", "grid0"}, {"GRID_PER_NODE", "2"}, {"GRID_RANK", "3"}, {"GRID_SIZE", "4"}};
  const auto cluster = muster::read_cluster(variables, read_grid);
  if (cluster.node_rank != 1 || cluster.local_rank != 1 || cluster.nodes != 2) std::abort();
}

int main() {
  own_launcher();
  std::puts("1 passed, 0 failed, 0 skipped");
}
