// The code of accumulation.md.
#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include <muster/accelerator.h>
#include <muster/fabric.h>
#include <torch/torch.h>

namespace F = torch::nn::functional;
using Points = std::vector<std::tuple<torch::Tensor, torch::Tensor>>;

static Points points(int64_t count) {
  Points all;
  for (int64_t i = 0; i < count; ++i) all.emplace_back(torch::full({4}, 0.1 * i), torch::full({1}, 0.3 * i));
  return all;
}

static void train(const Points& data) {
  muster::Accelerator accelerator({.gradient_accumulation_steps = 4});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), muster::DataLoader(data, {.batch_size = 2}));
  for (auto& [x, y] : batches) {
    auto window = accelerator.accumulate(model);  // before the forward, once per batch
    accelerator.backward(F::mse_loss(model(x), y));
    accelerator.clip_grad_norm_(model, 1.0);  // these three do nothing until the window ends
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Stops before the loader's end.
static void train_some(const Points& data, int limit) {
  muster::Accelerator accelerator({.gradient_accumulation_steps = 4});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), muster::DataLoader(data, {.batch_size = 2}));
  int step = 0;
  for (auto& [x, y] : batches) {
    auto window = accelerator.accumulate(model);
    if (++step == limit) window.end_window();  // on every rank, at once after accumulate()
    accelerator.backward(F::mse_loss(model(x), y));
    optimizer.step();
    optimizer.zero_grad();
    if (step == limit) break;
  }
}

static void train_by_tokens(const Points& data) {
  muster::Accelerator accelerator({.gradient_accumulation = {.num_steps = 2, .sync_with_dataloader = true}});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), muster::DataLoader(data, {.batch_size = 2}));
  for (auto& [x, y] : batches) {
    const auto mask = y > 0;  // the loss is a mean over some places only
    const auto tokens = mask.sum().item<int64_t>();
    auto window = accelerator.accumulate(model);
    window.count(tokens);  // so this is what it counts for
    accelerator.backward((model(x) - y).square().mul(mask).sum() / std::max<int64_t>(tokens, 1));
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Batches that the program makes by itself, some of them without a row that is any good.
static void train_without_a_loader(const Points& data) {
  muster::Accelerator accelerator({.gradient_accumulation_steps = 3, .strategy = "ddp_find_unused_parameters_true"});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int64_t i = 0; i < 9; ++i) {
    const int64_t rows = (i + accelerator.process_index()) % 3;
    std::vector<torch::Tensor> kept{torch::empty({0, 4})};
    for (int64_t row = 0; row < rows; ++row)
      kept.push_back(std::get<0>(data[static_cast<size_t>(i + row)]).view({1, 4}));
    const auto x = torch::cat(kept);
    auto window = accelerator.accumulate(model);
    window.count(static_cast<double>(x.size(0)));  // no loader knows how many there are
    if (rows > 0) accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

static void train_by_hand(const Points& data) {
  muster::Fabric fabric;
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
  auto batches = fabric.setup_dataloaders(muster::DataLoader(data, {.batch_size = 2}));
  int step = 0;
  for (auto& [x, y] : batches) {
    const bool accumulating = ++step % 4 != 0;
    auto quiet = fabric.no_backward_sync(model, accumulating);  // round forward and backward
    fabric.backward(F::mse_loss(model(x), y) / 4);
    if (accumulating) continue;
    optimizer.step();
    optimizer.zero_grad();
  }
}

int main() {
  const auto data = points(30);
  train(data);
  train_some(data, 6);
  train_by_tokens(data);
  train_without_a_loader(data);
  train_by_hand(data);
  std::puts("1 passed, 0 failed, 0 skipped");
}
