// The code of loop.md.
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <muster/accelerator.h>
#include <muster/base/format.h>
#include <muster/fabric.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;
using Points = std::vector<std::tuple<torch::Tensor, torch::Tensor>>;

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

static Points points() {
  Points all;
  for (int64_t i = 0; i < 40; ++i) all.emplace_back(torch::full({4}, 0.1 * i), torch::full({1}, 0.3 * i));
  return all;
}

template <class Model, class Batches>
static double held_out_loss(const muster::Accelerator& accelerator, const Model& model, Batches& batches) {
  const auto scope = accelerator.evaluation(model);  // until the end of the block
  double sum = 0;
  for (auto& [x, y] : batches) sum += F::mse_loss(model(x), y).template item<double>();
  return accelerator.reduce(sum, "mean");
}

static void train() {
  muster::Accelerator accelerator;
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.1), torch::nn::Linear(8, 1));
  auto [model, optimizer, batches] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 1e-3),
                                                         muster::DataLoader(points(), {.batch_size = 4}));
  for (auto epoch : accelerator.epochs(2)) {
    auto bar = accelerator.progress(batches, muster::formatted("epoch {}", epoch + 1));
    for (auto& [x, y] : bar) {
      const auto loss = F::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      bar.set("loss", loss.item<double>());
    }
  }
  require(held_out_loss(accelerator, model, batches) >= 0, "a loss");
  require(net->is_training(), "training goes on after the scope");
}

static void same_noise() {
  muster::Accelerator accelerator;
  auto augmentation = at::make_generator<at::CPUGeneratorImpl>(accelerator.process_index());
  accelerator.synchronize_rng_states({.cpu = true, .device = true}, augmentation);
  const auto drawn = accelerator.all_gather(torch::rand({2}, augmentation));
  require(torch::equal(drawn[0], drawn[drawn.size(0) - 1]), "all ranks draw alike");
}

static void by_fabric() {
  muster::Fabric fabric({.gradient_accumulation = {.num_steps = 2}, .precision = 32});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 1e-3));
  auto batches = fabric.setup_dataloaders(muster::DataLoader(points(), {.batch_size = 4}));
  for (auto& [x, y] : fabric.progress(batches, "train", {.quiet = true})) {
    auto window = fabric.accumulate(model);
    fabric.backward(F::mse_loss(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
  }
}

int main() {
  train();
  same_noise();
  by_fabric();
  std::puts("1 passed, 0 failed, 0 skipped");
}
