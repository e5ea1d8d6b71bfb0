// The code of evaluation.md.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <vector>

#include <muster/accelerator.h>
#include <torch/torch.h>

constexpr int64_t kSamples = 11;

static std::vector<std::tuple<torch::Tensor, int64_t>> samples() {
  std::vector<std::tuple<torch::Tensor, int64_t>> all;
  for (int64_t i = 0; i < kSamples; ++i) all.emplace_back(torch::sin(torch::arange(4, torch::kFloat) + i), i % 3);
  return all;
}

struct LargestScore : muster::Metric {
  LargestScore() : Metric({{.initial = torch::full({}, -1e9), .reduce = muster::comm::ReduceOp::max}}) {}
  void update(const torch::Tensor& scores) {
    if (scores.numel() > 0) state(0) = torch::maximum(state(0), scores.max());
  }
  torch::Tensor compute() const override { return state(0); }
};

static void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

template <class Model>
static torch::Tensor by_model(const muster::Accelerator& accelerator, const Model& model, const torch::Tensor& x) {
  torch::Tensor answer;
  if (accelerator.is_main_process()) answer = model(x);
  return answer;
}

template <class Model>
static torch::Tensor by_module(const muster::Accelerator& accelerator, const Model& model, torch::nn::Sequential& net,
                               const torch::Tensor& x) {
  torch::Tensor answer;
  accelerator.summon_full_params(model,
                                 [&] {
                                   if (accelerator.is_main_process()) answer = net->forward(x);
                                 },
                                 {.rank0_only = true, .writeback = false});
  return answer;
}

/// Returns whether this is the main process.
static bool evaluate(const char* strategy) {
  torch::manual_seed(1);
  muster::Accelerator accelerator({.strategy = strategy});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 3));
  const auto data = samples();
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), muster::DataLoader(data, {.batch_size = 4}));
  for (auto& [x, label] : batches) {
    accelerator.backward(torch::nn::functional::cross_entropy(model(x), label));
    optimizer.step();
    optimizer.zero_grad();
  }

  const torch::NoGradGuard no_grad;
  net->eval();
  int64_t right = 0;
  for (auto& [x, label] : batches) {
    auto [guess, truth] = accelerator.gather_for_metrics(model(x).argmax(1), label);
    right += (guess == truth).sum().item<int64_t>();
  }

  muster::Accuracy accuracy;
  LargestScore largest;
  for (auto& [x, label] : batches) {
    const auto rows = batches.local_real_samples();
    const auto scores = model(x).narrow(0, 0, rows);
    accuracy.update(scores, label.narrow(0, 0, rows));
    largest.update(scores);
  }
  const auto [share, top] = muster::compute_over_ranks(accelerator, accuracy, largest);
  require(std::lround(share.item<double>() * kSamples) == right, "a metric object counts alike");
  require(top.item<double>() > -1e9, "a custom metric has a value");

  std::vector<torch::Tensor> guesses;
  for (auto& [x, label] : batches) {
    guesses.push_back(accelerator.gather(model(x).argmax(1)));
  }
  const auto all = torch::cat(guesses).narrow(0, 0, kSamples);
  int64_t counted = 0;
  for (int64_t i = 0; i < kSamples; ++i) counted += all[i].item<int64_t>() == i % 3;
  require(counted == right, "both loops count alike");

  const auto x = torch::ones({2, 4});
  const bool cut = std::string_view(strategy) == "fsdp";
  const auto answer = cut ? by_module(accelerator, model, net, x) : by_model(accelerator, model, x);
  const auto together = model(x);
  require(!answer.defined() || torch::allclose(answer, together), "one rank sees what all see");
  return accelerator.is_main_process();
}

int main() {
  bool is_main = true;
  for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) is_main = evaluate(strategy);
  if (is_main) std::puts("1 passed, 0 failed, 0 skipped");
}
