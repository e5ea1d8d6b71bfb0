#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "muster/accelerator.h"
#include "muster/base/format.h"
#include "muster/base/temporary_folder.h"
#include "muster/checkpoint/weights.h"
#include "probe.h"

namespace muster::probe {
namespace {

using torch::Tensor;

/// Fails the current check unless `holds`.
void demand(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 16))},
      out{register_module("out", torch::nn::Linear(16, 1))};
};
TORCH_MODULE(Net);

Net make_net() {
  torch::manual_seed(3);
  Net net;
  net->to(torch::kDouble);
  return net;
}

using Pairs = std::vector<std::tuple<Tensor, Tensor>>;

Pairs pairs(int64_t count) {
  torch::manual_seed(5);
  Pairs result;
  for (int64_t i = 0; i < count; ++i) {
    auto x = torch::randn({8}, torch::kDouble);
    result.emplace_back(x, x.sum().sin().view({1}));
  }
  return result;
}

void check_collectives(Accelerator& accelerator) {
  const int64_t world = accelerator.num_processes(), rank = accelerator.process_index();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kLong})
    for (const int64_t size : {1, 1000, 300'000}) {
      const auto mine = torch::full({size}, rank + 1, dtype).to(accelerator.device());
      demand(torch::equal(accelerator.reduce(mine), torch::full_like(mine, world * (world + 1) / 2)),
             "a sum over ranks is wrong");
      const auto all = accelerator.gather(mine);
      demand(all.size(0) == world * size && all[-1].item<int64_t>() == world, "gathered values are not in rank order");
    }
}

void check_data(Accelerator& accelerator) {
  constexpr int64_t kSamples = 103;
  auto loader = accelerator.prepare(DataLoader([](int64_t i) { return torch::tensor(i); }, kSamples,
                                               {.batch_size = 5, .shuffle = true, .workers = 2}));
  std::vector<int64_t> seen;
  for (auto& batch : loader) {
    const auto step = accelerator.gather(batch).narrow(0, 0, loader.real_samples()).cpu();
    seen.insert(seen.end(), step.data_ptr<int64_t>(), step.data_ptr<int64_t>() + step.numel());
  }
  std::sort(seen.begin(), seen.end());
  demand(std::ssize(seen) == kSamples, formatted("{} of {} samples came", seen.size(), kSamples));
  for (int64_t i = 0; i < kSamples; ++i) demand(seen[i] == i, formatted("sample {} came twice or never", i));
}

/// Trains on all ranks; the weights must equal those that one process computes from the whole batches.
void check_training(Accelerator& accelerator) {
  const auto batch = int64_t{8} * accelerator.num_processes();
  const auto data = pairs(4 * batch);
  auto net = make_net(), alone = make_net();
  torch::optim::SGD by_hand(alone->parameters(), 0.05);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05), DataLoader(data, {.batch_size = 8}));
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 5; ++epoch)
    for (auto& [x, y] : batches) {
      const auto loss = torch::mse_loss(model(x), y);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const auto whole_x = accelerator.gather(x).cpu(), whole_y = accelerator.gather(y).cpu();
      const auto expected = torch::mse_loss(alone->forward(whole_x), whole_y);
      expected.backward();
      by_hand.step();
      by_hand.zero_grad();
      last = expected.item<double>();
      if (first == 0) first = last;
    }
  demand(last < first, formatted("the loss went from {:.4f} to {:.4f}", first, last));
  const auto trained = net->parameters(), expected = alone->parameters();
  for (size_t i = 0; i < trained.size(); ++i)
    demand(torch::allclose(trained[i].cpu(), expected[i], 1e-9, 1e-9),
           "the ranks' weights are not those of one process");
}

void check_weights(Accelerator& accelerator) {
  auto net = make_net();
  auto model = accelerator.prepare(net);
  const std::filesystem::path folder =
      accelerator.broadcast_object(accelerator.is_main_process() ? new_temporary_folder("muster-test").string() : "");
  accelerator.save_model(model, folder);
  accelerator.wait_for_everyone();
  const auto expected = make_net();
  auto other = make_net();
  for (auto& parameter : other->parameters()) torch::NoGradGuard(), parameter.zero_();
  load_into(weights_of(*other), folder);
  for (size_t i = 0; i < expected->parameters().size(); ++i)
    demand(torch::equal(other->parameters()[i], expected->parameters()[i]),
           "weights that were saved and read again differ");
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
}

}  // namespace

int run_checks() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  Accelerator accelerator;
  const auto seconds = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  int failures = 0;
  const auto check = [&](const char* name, const std::function<void()>& body) {
    const auto start = Clock::now();
    std::string problem;
    try {
      body();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    // A failed rank may have left its peers in the middle of an exchange; its failure ends them.
    if (!problem.empty()) {
      std::printf("FAILED  %-12s %s\n", name, problem.c_str());
      std::fflush(stdout);
      ++failures;
    } else {
      accelerator.print("ok      {:<12} {:.2f} s", name, seconds(start));
    }
    return problem.empty();
  };
  const bool all = check("launch", [&] { accelerator.wait_for_everyone(); }) &&
                   check("collectives", [&] { check_collectives(accelerator); }) &&
                   check("data", [&] { check_data(accelerator); }) &&
                   check("training", [&] { check_training(accelerator); }) &&
                   check("weights", [&] { check_weights(accelerator); });
  if (all)
    accelerator.print("muster test: everything works on {} ranks ({:.1f} s)", accelerator.num_processes(),
                      seconds(begin));
  return failures ? 1 : 0;
}

}  // namespace muster::probe
