#include <cstdio>

#include <muster/base/error.h>
#include <muster/cluster/cluster.h>

int main() {
  const muster::ClusterEnvironment alone = muster::read_cluster_environment(muster::Environment{});
  const muster::ClusterEnvironment second = muster::read_cluster_environment(
      muster::Environment{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}});
  try {
    muster::read_cluster_environment(muster::Environment{{"RANK", "x"}, {"WORLD_SIZE", "2"}});
  } catch (const muster::ConfigError& error) {
    std::printf("world %d, rank %d of %d, refused by %s\n", alone.world_size, second.rank, second.world_size,
                error.id().substr(0, 2).c_str());
  }
}
