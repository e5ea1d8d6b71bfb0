// Steps of the MLP of step_bench.cpp under Trainer, and under Accelerator with the same loader. Batches are in memory.
// Argument: a folder for checkpoints. With "FOLDER WAY STEPS" it runs so many steps once, for counting instructions.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mlp.h"
#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/trainer.h"
#include "protocol.h"

namespace {

namespace F = torch::nn::functional;
using Clock = std::chrono::steady_clock;
constexpr int kSteps = 1000, kWarmUp = 100, kEpochs = 50, kBatchesOfTinySet = 10, kFits = 3, kPairs = 15;
constexpr int kCompared = 100;  // steps of a fit of many epochs after which losses are compared: see table.py
constexpr double kFast = 0.1, kLearnt = 0.02;

/// How a step is trained.
struct Way {
  bool one_layer = false;
  bool barebones = false;
  bool default_callbacks = false;
  bool live = true;  // the progress bar is redrawn by the clock; else it prints a few lines
  int every = 1;     // so many batches have one that logs
  int logs = 0;
};

struct Mlp : muster::TrainerModule {
  explicit Mlp(const Way& way)
      : net(register_module("net", way.one_layer ? bench::make_one_layer() : bench::make_mlp())), way(way) {}
  torch::Tensor training_step(bench::Batch& batch, int64_t batch_idx) {
    begins.push_back(Clock::now());
    loss = F::cross_entropy(net->forward(batch.data), batch.target);
    if (begins.size() == kCompared) early_loss = loss;
    const int logs = batch_idx % way.every == 0 ? way.logs : 0;
    if (logs > 0) log("loss", loss);
    if (logs > 1) log("seen", static_cast<double>(batch_idx) * 32);
    return loss;
  }
  muster::Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 1e-3); }

  torch::nn::Sequential net;
  Way way;
  torch::Tensor loss, early_loss;
  std::vector<Clock::time_point> begins;  // of the steps
};

/// At a terminal that nobody sees, and with checkpoints in the folder.
std::vector<std::shared_ptr<muster::Callback>> default_callbacks(const std::filesystem::path& folder, bool live) {
  static std::FILE* const nowhere = std::fopen("/dev/null", "w");
  using Style = muster::ProgressOptions::Style;
  return {std::make_shared<muster::TrainerProgressBar>(muster::TrainerProgressBarOptions{
              .shown = {.stream = nowhere, .style = live ? Style::live : Style::lines}}),
          std::make_shared<muster::ModelCheckpoint>(
              muster::ModelCheckpointOptions{.dirpath = folder, .enable_version_counter = false})};
}

std::unique_ptr<Mlp> fit(const std::vector<bench::Batch>& batches, int64_t epochs, const Way& way,
                         const std::filesystem::path& folder) {
  auto module = std::make_unique<Mlp>(way);
  module->begins.reserve(batches.size() * static_cast<std::size_t>(epochs));
  muster::TrainerOptions options{.accelerator = "cpu",
                                 .barebones = way.barebones,
                                 .enable_checkpointing = way.default_callbacks,
                                 .enable_model_summary = false,
                                 .enable_progress_bar = way.default_callbacks,
                                 .max_epochs = epochs};
  if (way.default_callbacks) options.callbacks = default_callbacks(folder, way.live);
  muster::Trainer trainer(options);
  trainer.fit(*module, muster::DataLoader(muster::from_batches(batches)));
  return module;
}

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

bench::Measured mean_step(const std::vector<bench::Batch>& batches, const Way& way) {
  const auto module = fit(batches, 1, way, {});
  const auto total = microseconds(module->begins.back() - module->begins[kWarmUp]);
  return {.value = total / (kSteps - 1), .check = module->loss.item<double>()};
}

double quantile(std::vector<double> values, double part) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values.size() - 1) * part);
  std::ranges::nth_element(values, at);
  return *at;
}
double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

/// Microseconds of each step after the warm-up.
std::vector<double> steps_of(const Mlp& module) {
  std::vector<double> steps;
  for (std::size_t i = kWarmUp; i + 1 < module.begins.size(); ++i)
    steps.push_back(microseconds(module.begins[i + 1] - module.begins[i]));
  return steps;
}

/// Noise alone can make it negative: then it says nothing.
bench::Measured added(double more, double check) { return {.value = more, .check = check, .verified = more > 0}; }

/// Every second batch of a fit logs, so that both kinds of step find the same machine.
bench::Measured added_by_log(const std::vector<bench::Batch>& batches) {
  std::vector<double> steps[2];
  double check = 0;
  for (int turn = 0; turn < kFits; ++turn) {
    const auto module = fit(batches, 1, {.one_layer = true, .every = 2, .logs = 1}, {});
    const auto all = steps_of(*module);
    for (std::size_t i = 0; i < all.size(); ++i) steps[i % 2].push_back(all[i]);
    check = module->loss.item<double>();
  }
  return added(median(steps[0]) - median(steps[1]), check);
}

/// Of pairs of fits, since the machine changes in between; of their fast steps, which it disturbs least.
bench::Measured added_by_defaults(const std::vector<bench::Batch>& batches, const std::filesystem::path& folder) {
  std::vector<double> more;
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto plain = steps_of(*fit(batches, 1, {.one_layer = true}, folder));
    const auto full = steps_of(*fit(batches, 1, {.one_layer = true, .default_callbacks = true, .logs = 2}, folder));
    more.push_back(quantile(full, kFast) - quantile(plain, kFast));
  }
  return added(median(more), kSteps);
}

torch::Tensor accelerator_loop(const std::vector<bench::Batch>& batches) {
  muster::Accelerator accelerator;
  auto net = bench::make_mlp();
  auto [model, optimizer, loader] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-3)),
                          muster::DataLoader(muster::from_batches(batches)));
  torch::Tensor loss;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    loss = F::cross_entropy(model(batch.data), batch.target);
    accelerator.backward(loss);
    optimizer.step();
  }
  return loss;
}

bench::Measured measure(const std::string& name, const std::vector<bench::Batch>& batches,
                        const std::filesystem::path& folder) {
  if (name == "step bare") return mean_step(batches, {});
  if (name == "step barebones") return mean_step(batches, {.barebones = true});
  if (name == "step with a log") return mean_step(batches, {.logs = 1});
  if (name == "what a log adds") return added_by_log(batches);
  if (name == "what two logs and the default callbacks add") return added_by_defaults(batches, folder);
  if (name == "limit") return {.value = 5, .check = kSteps};
  if (name != "fit of 50 epochs") throw std::invalid_argument("unknown case");
  const std::vector<bench::Batch> few(batches.begin(), batches.begin() + kBatchesOfTinySet);
  std::unique_ptr<Mlp> module;
  const double seconds = bench::seconds([&] { module = fit(few, kEpochs, {}, folder); });
  return {.value = seconds * 1e3,
          .check = module->early_loss.item<double>(),
          .verified = module->loss.item<double>() < kLearnt};
}

double loss_after(const std::string& way, int steps, const std::filesystem::path& folder) {
  const auto batches = bench::make_batches(steps);
  if (way == "accelerator") return accelerator_loop(batches).item<double>();
  if (way == "bare") return fit(batches, 1, {}, folder)->loss.item<double>();
  if (way == "log") return fit(batches, 1, {.logs = 1}, folder)->loss.item<double>();
  if (way != "default" && way != "undrawn") throw std::invalid_argument("unknown way");
  const Way full{.default_callbacks = true, .live = way == "default", .logs = 2};
  return fit(batches, 1, full, folder)->loss.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::filesystem::path folder = argc > 1 ? argv[1] : "trainer_bench";
  if (argc == 4) {
    std::printf("loss %.6f\n", loss_after(argv[2], std::stoi(argv[3]), folder));
    return 0;
  }
  const auto batches = bench::make_batches(kWarmUp + kSteps);
  return bench::serve([&](const std::string& name) { return measure(name, batches, folder); });
}
