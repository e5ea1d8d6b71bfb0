#include <csignal>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/runtime/callback.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

TEST(Turns, EachFunctionRunsOnItsRank) {
  testing::as_ranks(3, [] {
    Accelerator accelerator;
    const int rank = accelerator.process_index();
    auto main = accelerator.on_main_process([](int x) { return x + 1; });
    EXPECT_EQ(main(1), rank == 0 ? std::optional(2) : std::nullopt);
    int ran = 0;
    accelerator.on_last_process([&] { ran += 1; })();
    accelerator.on_process(1, [&] { ran += 10; })();
    accelerator.on_local_process(2, [&] { ran += 100; })();
    accelerator.on_local_main_process([&] { ran += 1000; })();
    const int expected[] = {1000, 10, 101};
    EXPECT_EQ(ran, expected[rank]);
  });
}

TEST(Turns, AProgramThatRunsAloneRunsThemAll) {
  Accelerator accelerator;
  int ran = 0;
  accelerator.on_process(3, [&] { ++ran; })();
  accelerator.on_last_process([&] { ++ran; })();
  EXPECT_EQ(ran, 2);
}

TEST(Turns, AFailureOfTheFirstReachesAll) {
  testing::as_ranks(2, [] {
    Fabric fabric;
    const auto body = [&] {
      if (fabric.local_rank() == 0) throw std::runtime_error("the disk is full");
    };
    if (fabric.local_rank() == 0) EXPECT_THROW(fabric.local_rank_zero_first(body), std::runtime_error);
    else
      EXPECT_NE(testing::thrown([&] { fabric.local_rank_zero_first(body); }).find("the disk is full"),
                std::string::npos);
    fabric.barrier();
  });
}

TEST(Triggers, OneRankSetsThemAllSee) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    EXPECT_FALSE(accelerator.check_trigger());
    if (accelerator.process_index() == 1) accelerator.set_trigger();
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(Signals, AllRanksSeeThemAtTheSameStep) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    accelerator.catch_signals();
    int step = 0;
    for (; step < 100 && accelerator.signal_received() == 0; ++step)
      if (step == 3 && accelerator.process_index() == 1) std::raise(SIGTERM);
    EXPECT_EQ(step, 4);
    EXPECT_EQ(accelerator.signal_received(), SIGTERM);
  });
}

TEST(Logger, WritesOnceForAllRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    ::testing::internal::CaptureStderr();
    const auto log = accelerator.logger("train");
    log.warning("epoch {}", 3);
    log.everywhere().warning("here");
    log.in_order().error("in turn");
    log.debug("not {}", "shown");
    const auto text = ::testing::internal::GetCapturedStderr();
    const bool main = accelerator.is_main_process();
    EXPECT_EQ(text.find("[train] epoch 3") != std::string::npos, main) << text;
    EXPECT_NE(text.find("here"), std::string::npos) << text;
    EXPECT_NE(text.find("in turn"), std::string::npos) << text;
    EXPECT_EQ(text.find("shown"), std::string::npos) << text;
  });
}

TEST(BatchSize, TriesTheSizesOfTheReference) {
  const auto expected =
      nlohmann::json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/runtime/loop_cases.json"))
          .at("find_executable_batch_size")
          .at("sequence")
          .get<std::vector<int64_t>>();
  Accelerator accelerator;
  std::vector<int64_t> sizes;
  const auto all = [&](int64_t size) {
    sizes.push_back(size);
    throw std::bad_alloc();
  };
  EXPECT_EQ(testing::thrown_id([&] { accelerator.find_executable_batch_size(all); }), "MU185");
  EXPECT_EQ(sizes, expected);
  EXPECT_EQ(accelerator.find_executable_batch_size([](int64_t size) {
    if (size > 8) throw std::bad_alloc();
  }),
            8);
  const auto [size, squared] = accelerator.find_executable_batch_size(
      [](int64_t tried) {
        if (tried > 10) torch::empty({tried, int64_t{1} << 50});  // LibTorch's own lack of memory
        return tried * tried;
      },
      {.reduce_batch_size = [](int64_t tried) { return tried / 2; }, .starting_batch_size = 16});
  EXPECT_EQ(size, 8);
  EXPECT_EQ(squared, 64);
  EXPECT_THROW(accelerator.find_executable_batch_size([](int64_t) { throw std::runtime_error("a bug"); }),
               std::runtime_error);
  EXPECT_EQ(testing::thrown_id([&] { accelerator.find_executable_batch_size(all, {.starting_batch_size = 0}); }),
            "MU185");
  EXPECT_EQ(testing::thrown_id([&] {
              accelerator.find_executable_batch_size(all, {.reduce_batch_size = [](int64_t s) { return s; }});
            }),
            "MU185");
}

TEST(BatchSize, RanksDecideTogether) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    std::vector<int64_t> sizes;
    const auto found = accelerator.find_executable_batch_size([&](int64_t size) {
      sizes.push_back(size);
      torch::manual_seed(0);
      torch::nn::Linear net(4, 1);
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      accelerator.backward(model(torch::ones({size, 4})).sum());
      // The other rank is in the middle of the next backward meanwhile.
      if (accelerator.process_index() == 1 && size > 100) throw std::bad_alloc();
      accelerator.backward(model(torch::ones({size, 4})).sum());
      optimizer.step();
    });
    EXPECT_EQ(found, 92);
    EXPECT_EQ(sizes, (std::vector<int64_t>{128, 115, 103, 92}));
    EXPECT_EQ(accelerator.gather(torch::tensor(1)).sum().item<int64_t>(), 2);  // the program's own group lives
    const auto failing = [&](int64_t) {
      if (accelerator.process_index() == 1) throw std::runtime_error("a bug");
      accelerator.wait_for_everyone();
    };
    if (accelerator.process_index() == 1)
      EXPECT_THROW(accelerator.find_executable_batch_size(failing), std::runtime_error);
    else EXPECT_ANY_THROW(accelerator.find_executable_batch_size(failing));
    accelerator.wait_for_everyone();
  });
}

TEST(FreeMemory, EmptiesHandles) {
  Accelerator accelerator;
  std::weak_ptr<torch::nn::LinearImpl> gone;
  {
    torch::nn::Linear net(2, 2);
    gone = net.ptr();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    net = nullptr;
    EXPECT_FALSE(gone.expired());
    accelerator.free_memory(model, optimizer);
    EXPECT_TRUE(gone.expired());
  }
  auto next = accelerator.prepare(torch::nn::Linear(2, 2));
  accelerator.backward(next(torch::ones({1, 2})).sum());
}

struct Recorder : FabricCallback {
  void on_after_setup(torch::nn::Module& module) override { seen.push_back("setup " + module.name()); }
  void on_after_optimizer_step(Optimizer&) override { seen.push_back("step"); }
  std::vector<std::string> seen;
};
struct EpochRecorder : Recorder {
  void on_epoch_end(int epoch, const std::string& word) { seen.push_back(word + std::to_string(epoch)); }
};

TEST(Callbacks, AreCalledWhereTheyHaveTheFunction) {
  auto one = std::make_shared<Recorder>();
  auto other = std::make_shared<EpochRecorder>();
  Fabric fabric({.callbacks = {one, other}});
  torch::nn::Linear net(2, 1);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
  fabric.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  fabric.call(&EpochRecorder::on_epoch_end, 3, "epoch ");
  EXPECT_EQ(one->seen.size(), 2u);
  EXPECT_EQ(other->seen, (std::vector<std::string>{"setup torch::nn::LinearImpl", "step", "epoch 3"}));
}

}  // namespace
}  // namespace muster
