#include <muster/accelerator.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

void train() {
  torch::manual_seed(1);
  muster::Accelerator accelerator;
  muster::DataLoader loader(Digits(Digits::Part::train), {.batch_size = 64, .shuffle = true});
  DigitNet net;
  auto [model, optimizer, batches] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3), loader);
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor loss;
    for (auto& [image, label] : batches) {
      optimizer.zero_grad();
      loss = F::cross_entropy(model(image), label);
      accelerator.backward(loss);
      optimizer.step();
    }
    accelerator.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
}

int main() { train(); }
