// The first DDP step of a small model after its ranks were started again: prints when a rank died in the first start,
// and when the step of the second was reached, on the monotonic clock.
#include <chrono>
#include <csignal>
#include <cstdio>

#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/cluster/cluster.h"

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main() {
  at::set_num_threads(1);
  const bool again = muster::read_cluster_environment().restart_count > 0;
  muster::Accelerator accelerator;
  torch::manual_seed(0);
  torch::nn::Linear net(64, 10);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  if (accelerator.num_processes() != 2) return 1;
  for (;;) {
    auto loss = model(torch::ones({8, 64})).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (again) {
      if (accelerator.is_main_process()) std::printf("reached %.6f %.9g\n", now(), loss.item<double>());
      return 0;
    }
    if (accelerator.is_main_process()) continue;  // into a step that its peer does not make
    std::printf("died %.6f\n", now());
    std::fflush(stdout);
    std::raise(SIGKILL);
  }
}
