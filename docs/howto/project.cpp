#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 32));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(32, 2));
  torch::Tensor forward(torch::Tensor x) { return head(torch::tanh(hidden(x))); }
};
TORCH_MODULE(Net);

int main() {
  std::vector<torch::data::Example<>> dataset;  // replace it by your data: is a point in the unit circle?
  for (int i = 0; i < 1000; ++i) {
    const auto point = torch::randn(2);
    dataset.emplace_back(point, (point.norm() < 1).to(torch::kLong));
  }
  muster::Accelerator accelerator;
  Net net;
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2),
                          muster::DataLoader(dataset, {.batch_size = 50, .shuffle = true}));
  for (auto epoch : accelerator.epochs(5)) {
    torch::Tensor loss;
    for (auto& [point, label] : batches) {
      loss = torch::nn::functional::cross_entropy(model(point), label);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
  accelerator.save_model(model, "out");  // safetensors
}
