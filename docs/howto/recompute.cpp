// The code of recompute.md.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <muster/accelerator.h>
#include <muster/graph/recompute.h>
#include <torch/torch.h>

using Encoder = torch::nn::TransformerEncoder;

static Encoder make_encoder() {
  const auto layer = torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.1);
  return Encoder(torch::nn::TransformerEncoderOptions(layer, 3));
}

static void whole_program() {
  muster::Accelerator accelerator({.recompute = {.blocks = {"TransformerEncoderLayer"}}});
  auto net = make_encoder();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3));
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(torch::randn({5, 4, 16})).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

static void less() {
  const muster::RecomputeOptions options{.blocks = {"auto"}, .every = 2, .keep = {"matmul", "attention"}};
  muster::Accelerator accelerator({.recompute = options});
  auto model = accelerator.prepare(make_encoder());
  accelerator.backward(model(torch::randn({5, 4, 16})).sum());
}

static void within_a_budget() {
  muster::Accelerator accelerator({.recompute = {.blocks = {"auto"}, .budget_mib = 0.05}});
  auto model = accelerator.prepare(make_encoder());
  for (int step = 0; step < 2; ++step) accelerator.backward(model(torch::randn({5, 4, 16})).sum());
  if (accelerator.plan().find("kept, within the budget") == std::string::npos) std::abort();
}

static void as_fsdp_says_it() {
  using Block = torch::nn::TransformerEncoderLayerImpl;
  muster::Accelerator accelerator({.strategy = muster::FSDP{.activation_checkpointing = {typeid(Block)}}});
  auto model = accelerator.prepare(make_encoder());
  accelerator.backward(model(torch::randn({5, 4, 16})).sum());
}

static void without_accelerator() {
  auto net = make_encoder();
  torch::Tensor loss;
  {
    const muster::RecomputeScope scope(*net, {.blocks = {"TransformerEncoderLayer"}});
    loss = net->forward(torch::randn({5, 4, 16})).pow(2).mean();
  }
  loss.backward();
}

static void by_hand() {
  torch::nn::Linear in(16, 64), out(64, 16);
  const auto block = [in, out](const torch::Tensor& x) mutable { return out(torch::gelu(in(x))); };
  const auto x = torch::randn({8, 16});
  const auto y = muster::recompute(block, x);
  y.sum().backward();
  if (!in->weight.grad().defined()) std::abort();
}

int main() {
  whole_program();
  less();
  within_a_budget();
  as_fsdp_says_it();
  without_accelerator();
  by_hand();
  if (muster::Accelerator().is_main_process()) std::puts("1 passed, 0 failed, 0 skipped");
}
