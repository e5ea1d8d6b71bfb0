#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

void train() {
  torch::manual_seed(1);
  DigitNet model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  auto stacked = Digits(Digits::Part::train).map(torch::data::transforms::Stack<>());
  auto batches = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(std::move(stacked), 64);
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor loss;
    for (auto& [image, label] : *batches) {
      optimizer.zero_grad();
      loss = F::cross_entropy(model(image), label);
      loss.backward();
      optimizer.step();
    }
    std::cout << "epoch " << epoch << ": loss " << loss.item<float>() << std::endl;
  }
}

int main() { train(); }
