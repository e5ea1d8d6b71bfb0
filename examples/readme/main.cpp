#include <muster/accelerator.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {  // any torch::nn module, unchanged
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(64, 128));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(128, 10));
  torch::Tensor forward(torch::Tensor x) { return head(hidden(x).relu()); }
};
TORCH_MODULE(Net);

int main() {
  std::vector<torch::data::Example<>> dataset;  // any torch::data dataset, or a range of samples
  for (int i = 0; i < 2000; ++i) {
    auto image = torch::randn(64);
    dataset.emplace_back(image, image.slice(0, 0, 10).argmax());
  }
  muster::Accelerator accelerator({.mixed_precision = "bf16"});
  Net net;
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3),
                          muster::DataLoader(dataset, {.batch_size = 64, .shuffle = true}));
  for (auto epoch : accelerator.epochs(3)) {
    torch::Tensor loss;
    for (auto& [image, label] : batches) {
      loss = torch::nn::functional::cross_entropy(model(image), label);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch {}: loss {:.4f}", epoch, loss.item<float>());
  }
  accelerator.save_model(model, "out");  // safetensors
}
