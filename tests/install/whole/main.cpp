#include <cstdio>
#include <string_view>

#include <muster/accelerator.h>
#include <torch/torch.h>

static_assert(std::string_view(MUSTER_VERSION) == FOUND_VERSION);

int main() {
  muster::Accelerator accelerator;
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto input = torch::ones({8, 4});
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    auto loss = (model(input) - 1).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("processes %d, loss fell: %s\n", static_cast<int>(accelerator.num_processes()),
              last < 0.1 * first ? "yes" : "no");
}
