// torch::nn::Transformer, unchanged, learns to predict the next row of a digit from the rows above it.
#include <muster/accelerator.h>
#include <torch/torch.h>

#include "../digits.h"

namespace F = torch::nn::functional;

// Source rows 0 to 6 and target rows 1 to 7 of every image, as sequences of eight pixels.
std::vector<std::tuple<torch::Tensor, torch::Tensor>> rows() {
  Digits digits(Digits::Part::train);
  std::vector<std::tuple<torch::Tensor, torch::Tensor>> pairs;
  for (size_t i = 0; i < *digits.size(); ++i) {
    auto image = digits.get(i).data.view({8, 8});
    pairs.emplace_back(image.slice(0, 0, 7), image.slice(0, 1, 8));
  }
  return pairs;
}

void train() {
  torch::manual_seed(1);
  muster::Accelerator accelerator;
  torch::nn::Transformer net(torch::nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(64).dropout(0.0));
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3),
                          muster::DataLoader(rows(), {.batch_size = 64, .shuffle = true}));
  for (auto epoch : accelerator.epochs(3)) {
    torch::Tensor loss;
    for (auto& [source, target] : batches) {
      optimizer.zero_grad();
      auto guess = model(source.transpose(0, 1), source.transpose(0, 1));
      loss = F::mse_loss(guess, target.transpose(0, 1));
      accelerator.backward(loss);
      optimizer.step();
    }
    accelerator.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
}

int main() { train(); }
