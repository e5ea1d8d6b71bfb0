// The code of uneven_inputs.md.
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;

int main() {
  // With dispatch_batches rank 0 alone reads, and the default CPU generator is rank 0's whenever a pass begins.
  muster::Accelerator accelerator({.dispatch_batches = true, .synced_generators = {.cpu = true}});
  accelerator.set_seed(1);
  torch::nn::Linear net(4, 1);
  const auto get = [](int64_t i) { return std::make_tuple(torch::full({4}, 0.1 * i), torch::full({1}, 0.3 * i)); };
  auto [model, optimizer, batches] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01),
                                                         muster::DataLoader(get, 9, {.batch_size = 2}));

  auto losses = accelerator.collector<torch::Tensor>();
  accelerator.join_uneven_inputs(
      [&, model = model, optimizer = optimizer, batches = batches]() mutable {
        for (auto& [x, y] : batches) {
          auto window = accelerator.accumulate(model);
          const auto loss = F::mse_loss(model(x), y, F::MSELossFuncOptions(torch::kNone));
          accelerator.backward(loss.mean());
          optimizer.step();
          optimizer.zero_grad();
          losses.add(loss.detach());
        }
      },
      {.even_batches = false});
  if (losses.gathered().numel() != 9) std::abort();  // each sample once

  int64_t seen = 0;
  for (auto& [x, y] : accelerator.skip_first_batches(batches, 1)) seen += accelerator.gather_for_metrics(y).numel();
  accelerator.print("{} passed, {} failed, 0 skipped", static_cast<int>(seen < 9), static_cast<int>(seen >= 9));
  return seen < 9 ? 0 : 1;
}
