// The code of launch.md.
#include <cstdio>
#include <cstdlib>

#include <muster/cluster/cluster.h>
#include <muster/comm/communicator.h>
#include <muster/comm/rendezvous.h>
#include <muster/launcher/launch.h>
#include <torch/torch.h>

int main() {
  const muster::ClusterEnvironment cluster =
      muster::launch({.processes = 2});  // first in main: from here on two ranks run
  const auto group = muster::comm::connect(cluster);
  const auto sum = torch::full({3}, cluster.rank + 1.0);
  group.all_reduce(sum);
  if (cluster.rank == 0) std::printf("%d ranks, sum %.0f\n", cluster.world_size, sum[0].item<double>());

  if (sum[0].item<double>() != 3.0) return EXIT_FAILURE;
  if (cluster.rank == 0) std::printf("1 passed, 0 failed, 0 skipped\n");
}
