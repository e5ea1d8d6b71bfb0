#include <muster/fabric.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

void train() {
  torch::manual_seed(1);
  muster::Fabric fabric;
  fabric.launch();
  DigitNet net;
  auto [model, optimizer] = fabric.setup(net, torch::optim::AdamW(net->parameters(), 1e-3));
  auto batches =
      fabric.setup_dataloaders(muster::DataLoader(Digits(Digits::Part::train), {.batch_size = 64, .shuffle = true}));
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor loss;
    for (auto& [image, label] : batches) {
      optimizer.zero_grad();
      loss = F::cross_entropy(model(image), label);
      fabric.backward(loss);
      optimizer.step();
    }
    fabric.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
}

int main() { train(); }
