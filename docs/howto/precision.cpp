// The code of precision.md.
#include <cstdio>
#include <cstdlib>

#include <muster/accelerator.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(body(x));
    x = muster::in_fp32([&](torch::Tensor wide) { return norm(wide); }, x);
    return head(x.to(head->weight.scalar_type()));
  }
  torch::nn::Linear body{register_module("body", torch::nn::Linear(4, 8))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 1))};
};
TORCH_MODULE(Net);

static void mixed() {
  muster::Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = "fp16"});
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 1});
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(F::mse_loss(model(x), y));  // scaled
    accelerator.clip_grad_norm_(model, 1.0);         // unscales first, once
    optimizer.step();                                // or not, on all ranks alike
    if (accelerator.optimizer_step_was_skipped()) std::puts("the gradients were not finite");
    optimizer.zero_grad();
  }
  const muster::GradScalerState saved = *optimizer.scaler_state();
  optimizer.load_scaler_state(saved);

  auto cast = accelerator.autocast();
  const auto half = torch::mm(x, x.t());  // float16
  {
    auto off = accelerator.autocast({.enabled = false});
    const auto full = torch::mm(x, x.t());  // float32
    if (full.scalar_type() != torch::kFloat || half.scalar_type() != torch::kHalf) std::abort();
  }
}

static void pure() {
  muster::Accelerator accelerator({.fp32_modules = {"norm"}, .mixed_precision = "bf16-true"});
  auto model = accelerator.prepare(Net());
  if (model->norm->weight.scalar_type() != torch::kFloat) std::abort();
  accelerator.backward(model(torch::randn({8, 4})).sum());
}

int main() {
  mixed();
  pure();
  std::puts("1 passed, 0 failed, 0 skipped");
}
