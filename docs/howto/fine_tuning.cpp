// The program of fine_tuning.md, compiled and run by the tests on one rank and on two.
#include <cstdio>
#include <memory>
#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear body{register_module("body", torch::nn::Linear(8, 16))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(16, 1))};
  torch::Tensor forward(torch::Tensor x) { return head(torch::tanh(body(x))); }
};
TORCH_MODULE(Net);

void set_trainable(torch::nn::Module& module, bool on) {
  for (auto& parameter : module.parameters()) parameter.requires_grad_(on);
}

int main() {
  muster::Accelerator accelerator;
  torch::manual_seed(1);
  Net net;
  set_trainable(*net->body, false);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->head->parameters(), 1e-2));

  const auto x = torch::randn({32, 8}), y = x.sum(1, true).sin();
  const auto train = [&, &model = model, &optimizer = optimizer](int steps) {
    double last = 0;
    for (int step = 0; step < steps; ++step) {
      auto loss = torch::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      last = loss.item<double>();
    }
    return last;
  };
  const double first = train(1), head = train(30);

  set_trainable(*net->body, true);
  optimizer.add_param_group(
      {net->body->parameters(), std::make_unique<torch::optim::AdamWOptions>(1e-3)});  // a smaller learning rate
  const double all = train(60);

  set_trainable(*net->head, false);
  const double body = train(30);

  accelerator.print("loss {:.4f}, head {:.4f}, all {:.4f}, body {:.4f}", first, head, all, body);
  const bool good = head < first && all < head && body < all && optimizer.param_groups().size() == 2;
  if (accelerator.is_main_process()) std::printf("%d passed, %d failed, 0 skipped\n", good, !good);
  return good ? 0 : 1;
}
