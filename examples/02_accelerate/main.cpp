#include <muster/accelerator.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

void train() {
  torch::manual_seed(1);
  Digits data(Digits::Part::train);
  muster::Accelerator accelerator;
  auto [net, batches] = accelerator.prepare(DigitNet(), muster::DataLoader(data, {.batch_size = 64, .shuffle = true}));
  auto optimizer = accelerator.prepare(torch::optim::AdamW(net->parameters(), 1e-3));
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor loss;
    for (auto& [image, label] : batches) {
      optimizer.zero_grad();
      loss = F::cross_entropy(net(image), label);
      accelerator.backward(loss);
      optimizer.step();
    }
    accelerator.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
}

int main() { train(); }
