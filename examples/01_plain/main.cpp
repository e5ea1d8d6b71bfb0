#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

void train() {
  torch::manual_seed(1);
  Digits data(Digits::Part::train);
  DigitNet net;
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  auto stacked = data.map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(std::move(stacked), 64);
  auto& batches = *loader;
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor loss;
    for (auto& [image, label] : batches) {
      optimizer.zero_grad();
      loss = F::cross_entropy(net(image), label);
      loss.backward();
      optimizer.step();
    }
    std::cout << "epoch " << epoch << ": loss " << loss.item<float>() << std::endl;
  }
}

int main() { train(); }
