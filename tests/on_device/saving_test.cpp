// Checkpoints of programs on an accelerator.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/sharded_options.h"
#include "muster/sim/sim.h"
#include "muster/testing/compare.h"
#include "on_device/test_device.h"
#include "runtime/device_course.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

struct DroppingImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(8, 31))},
      out{register_module("out", torch::nn::Linear(31, 3))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.5))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(31))};
  at::Tensor forward(const at::Tensor& x) { return out(dropout(norm(torch::tanh(in(x))))); }
};
TORCH_MODULE(Dropping);

/// A program that draws random numbers on its device, and some on another one.
struct Program {
  explicit Program(const Strategy& strategy, uint64_t seed)
      : accelerator({.device_backend = "none", .strategy = strategy}), net((torch::manual_seed(seed), Dropping())),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)))),
        other(testing::test_device(3)) {
    accelerator.set_seed(seed, /*per_rank=*/true);
  }
  void step(int i) {
    const auto x = torch::sin(torch::arange(48.0F) * (i + 1) + accelerator.process_index()).view({6, 8});
    accelerator.backward(model(x.to(accelerator.device())).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    drawn += torch::rand({2}, torch::TensorOptions(other)).cpu();
  }
  std::vector<at::Tensor> results() {
    std::vector<at::Tensor> all{drawn.clone(), net->norm->running_mean.cpu()};
    accelerator.summon_full_params(model, [&] {
      for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().cpu().clone());
    });
    return all;
  }

  Accelerator accelerator;
  Dropping net;
  Model<DroppingImpl> model;
  Optimizer optimizer;
  at::Device other;
  at::Tensor drawn = torch::zeros({2});
};

void expect_resumed_to_the_bit(const Strategy& strategy, bool asynchronous, const fs::path& folder) {
  std::vector<at::Tensor> uninterrupted;
  {
    Program program(strategy, 3);
    for (int i = 0; i < 2; ++i) program.step(i);
    program.drawn.zero_();
    program.accelerator.save_state(folder, {.asynchronous = asynchronous, .durability = Durability::none});
    for (int i = 2; i < 5; ++i) program.step(i);
    program.accelerator.wait_for_save();
    uninterrupted = program.results();
  }
  Program program(strategy, 8);
  program.step(9);
  program.drawn.zero_();
  program.accelerator.load_state(folder);
  for (int i = 2; i < 5; ++i) program.step(i);
  const auto resumed = program.results();
  for (size_t i = 0; i < resumed.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(resumed[i], uninterrupted[i]), "") << strategy.name() << ", result " << i;
}

void as_device_ranks(int size, const std::function<void(const fs::path& folder)>& body) {
  const auto folder = [](int process) {
    return fs::temp_directory_path() / ("muster_saving_" + std::to_string(process));
  };
  testing::as_device_ranks(size, [&] { body(folder(::getppid())); });
  fs::remove_all(folder(::getpid()));
}

TEST(SavingOnDevice, IsResumedToTheBitWithDropoutAndOtherGenerators) {
  as_device_ranks(2, [](const fs::path& folder) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      testing::set_order(seed);
      expect_resumed_to_the_bit("ddp", seed % 2 == 0, folder);
      expect_resumed_to_the_bit(FSDP{.unit_min_elements = 60}, seed % 2 == 1, folder);
    }
  });
}

TEST(SavingOnDevice, MakesTheHostWaitForNothingIfAsynchronous) {
  if (testing::on_cuda()) GTEST_SKIP() << "only the simulated accelerator counts the waits of the host";
  as_device_ranks(1, [](const fs::path& folder) {
    sim::set_seed(2);
    Program program("auto", 3);
    const auto save = [&] {
      program.accelerator.save_state(folder, {.asynchronous = true, .durability = Durability::none});
    };
    program.step(0);
    save();
    program.accelerator.wait_for_save();
    program.step(1);
    sim::reset_stats();
    save();
    for (const auto& [cause, count] : sim::stats().host_waits)
      EXPECT_EQ(cause, "event") << count << " waits; the writer's thread may wait for the copies";
    program.accelerator.wait_for_save();
    EXPECT_NE(program.accelerator.plan().find("asynchronous saves: "), std::string::npos) << program.accelerator.plan();
  });
}

}  // namespace
}  // namespace muster
