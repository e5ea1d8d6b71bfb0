// The code of sharding.md: sharding FOLDER trains on as many ranks as there are, and leaves a checkpoint and whole
// weights in FOLDER.
#include <cstdio>
#include <filesystem>
#include <string>

#include <muster/accelerator.h>
#include <muster/optim/elementwise.h>
#include <muster/parallel/sharded_options.h>
#include <muster/parallel/wrap.h>
#include <torch/torch.h>

int failed = 0, passed = 0;

void expect(const char* what, bool holds) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED %s\n", what);
}

// Nothing in the model knows of sharding.
struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(40, 100))},
      down{register_module("down", torch::nn::Linear(100, 40))};
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding words{register_module("words", torch::nn::Embedding(64, 40))};
  torch::nn::Sequential blocks{register_module("blocks", torch::nn::Sequential(Block(), Block(), Block()))};
  // All of the head is gathered and freed together where parameters are sharded; otherwise wrap() does nothing.
  torch::nn::Linear head{register_module("head", muster::wrap(torch::nn::Linear(40, 64)))};
  at::Tensor forward(const at::Tensor& x) { return head(blocks->forward(words(x))); }
};
TORCH_MODULE(Net);

// A custom optimizer that works on whatever part of the parameters a rank holds.
struct Lion : muster::ElementwiseOptimizer {
  Lion(std::vector<at::Tensor> parameters, double lr)
      : ElementwiseOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, {{"lr", lr}, {"beta", 0.9}},
                             {"exp_avg"}) {}
  void update(const muster::ElementwiseOptions& options, const muster::ElementwiseUpdate& u) override {
    u.value.sub_((u.states[0] * 0.9 + u.gradient * 0.1).sign_(), options.get_lr());
    u.states[0].mul_(options.at("beta")).add_(u.gradient, 1 - options.at("beta"));
  }
};

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : "sharding";
  torch::manual_seed(1);

  muster::Accelerator accelerator({.strategy = muster::FSDP{.unit_types = {typeid(BlockImpl)}}});
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, Lion(net->parameters(), 1e-3));
  if (accelerator.is_main_process()) std::puts(accelerator.plan().c_str());

  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const auto words = (torch::arange(4 * 16).view({4, 16}) * 3 + accelerator.process_index()) % 64;
    const auto loss = torch::cross_entropy_loss(model(words).view({-1, 64}), words.roll(1, 1).view(-1));
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  accelerator.save_state(folder / "state");         // each rank its part
  accelerator.save_model(model, folder / "model");  // full weights, tensor by tensor

  // The user's own module, with full values; what is written is kept, unless .writeback = false forbids it.
  accelerator.summon_full_params(model, [&] { torch::nn::init::zeros_(net->head->bias); });

  double sum = 1;
  accelerator.summon_full_params(model, [&] { sum = net->head->bias.abs().sum().item<double>(); },
                                 {.writeback = false});
  expect("what was written is there", sum == 0);
  expect("it learns", last < first);
  if (accelerator.is_main_process() || failed > 0) std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed > 0 ? 1 : 0;
}
