// The first DDP step of a small model on as many ranks as the argument says: prints when it was reached, on the
// monotonic clock.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <torch/torch.h>

#include "muster/accelerator.h"

int main(int, char** words) {
  at::set_num_threads(1);
  muster::Accelerator accelerator;
  torch::manual_seed(0);
  torch::nn::Linear net(64, 10);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loss = model(torch::ones({8, 64})).square().mean();
  accelerator.backward(loss);
  optimizer.step();
  if (accelerator.num_processes() != std::atoi(words[1])) return 1;
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (accelerator.is_main_process()) std::printf("reached %.6f %.9g\n", now, loss.item<double>());
}
