#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/python.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

using torch::nn::Linear;

/// Prepares a layer under a strategy and steps it twice, so that what is sharded is not in memory.
template <class F>
void after_a_step(const char* strategy, F&& f) {
  Accelerator accelerator({.strategy = strategy});
  Linear net(7, 5);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(torch::ones({2, 7})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  f(accelerator, net, model);
}

TEST(TorchSave, OfShardedParametersNamesWhatToCall) {  // MU161
  testing::as_ranks(2, [] {
    after_a_step("fsdp", [](Accelerator& accelerator, const Linear& net, const Model<torch::nn::LinearImpl>& model) {
      std::ostringstream file;
      const auto text = testing::thrown([&] { torch::save(net, file); });
      EXPECT_TRUE(text.starts_with("MU161: torch::save needs parameter 'weight'")) << text;
      EXPECT_NE(text.find("save_model"), std::string::npos) << text;
      EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
      EXPECT_EQ(testing::thrown_id([&] { torch::save(net.ptr(), file); }), "MU161");
      accelerator.summon_full_params(
          model, [&] { EXPECT_EQ(testing::thrown_id([&] { torch::save(net, file); }), "no error"); });
    });
  });
}

// As from a source that does not include Muster.
TEST(TorchSave, PastTheOverloadsIsAnExceptionOfLibTorchWithTheId) {
  if (TORCH_VERSION_MINOR < 13) GTEST_SKIP() << "LibTorch 2.11 writes without asking the storage, and crashes";
  testing::as_ranks(2, [] {
    after_a_step("fsdp", [](Accelerator&, const Linear& net, const auto&) {
      std::ostringstream file;
      torch::serialize::OutputArchive archive;
      net->save(archive);
      std::string directly;
      try {
        archive.save_to(file);
      } catch (const c10::Error& error) {
        directly = error.what_without_backtrace();
      }
      EXPECT_TRUE(directly.starts_with("MU161: the values of unit")) << directly;
    });
  });
}

TEST(TorchSave, OfWholeParametersWritesThem) {
  testing::as_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "zero2"})
      after_a_step(strategy, [&](Accelerator&, const Linear& net, const auto&) {
        std::stringstream file;
        torch::save(net, file);
        Linear read(7, 5);
        torch::load(read, file);
        EXPECT_TRUE(torch::equal(read->weight.detach(), net->weight.detach().clone())) << strategy;
        EXPECT_TRUE(torch::equal(read->bias.detach(), net->bias.detach().clone())) << strategy;
      });
  });
}

/// Written by Python's torch.
std::filesystem::path sample(const char* name) {
  return std::filesystem::path(MUSTER_SOURCE_DIR) / "tests/format/python_files" / name;
}

const torch::Tensor kSaved = torch::arange(6.0F).view({2, 3});

TEST(TorchFiles, LeavesOutObjectsBesideTheWeights) {  // MU226
  testing::as_ranks(2, [] {
    for (const char* way : {"ddp", "zero1", "zero2", "fsdp"}) {
      Accelerator accelerator({.strategy = way});
      auto model = accelerator.prepare(torch::nn::Linear(3, 2));
      ::testing::internal::CaptureStderr();
      accelerator.load_model(model, sample("arguments.pt"));
      const auto said = ::testing::internal::GetCapturedStderr();
      EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), accelerator.is_main_process() ? 1 : 0) << said;
      EXPECT_EQ(said.find("left out: epoch, 'args', an object of 'argparse.Namespace'") != std::string::npos,
                accelerator.is_main_process())
          << said;
      const auto weight = [&] { return model.prepared()->managed->full_state(false).at(0).second; };
      EXPECT_TRUE(torch::equal(weight(), kSaved)) << way;
      EXPECT_EQ(testing::thrown_id([&] { accelerator.load_model(model, sample("sparse.pt")); }), "MU226") << way;
      EXPECT_EQ(testing::thrown_id([&] { accelerator.load_model(model, sample("foreign.pt")); }), "MU228") << way;
      EXPECT_TRUE(torch::equal(weight(), kSaved)) << way;
    }
  });
}

/// As Scripted in python_files/write.py.
struct ScriptedImpl : torch::nn::Module {
  struct PartImpl : torch::nn::Module {
    torch::nn::Linear lin{register_module("lin", torch::nn::Linear(3, 2))};
  };
  std::shared_ptr<PartImpl> part = register_module("part", std::make_shared<PartImpl>());
  torch::Tensor scale = register_parameter("scale", torch::ones({})), mean = register_buffer("mean", torch::ones({2}));
};
TORCH_MODULE(Scripted);

TEST(TorchFiles, ReadsTheWeightsOfAScriptedModule) {
  Accelerator accelerator;
  Scripted net;
  accelerator.load_model(net, sample("scripted.pt"));
  EXPECT_TRUE(torch::equal(net->part->lin->weight, kSaved));
  EXPECT_EQ(net->scale.item<float>(), 0.5F);
  EXPECT_TRUE(torch::equal(net->mean, torch::full({2}, 0.25)));
}

TEST(TorchFiles, ReadsFoldersOfTorchFiles) {
  testing::as_ranks(2, [] {
    for (const char* way : {"ddp", "fsdp"}) {
      Accelerator accelerator({.strategy = way});
      auto model = accelerator.prepare(torch::nn::Linear(3, 2));
      const auto folder = testing::shared_folder(accelerator.group());
      const auto one = folder.path() / "one", two = folder.path() / "two";
      if (accelerator.is_main_process()) {
        std::filesystem::create_directories(one), std::filesystem::create_directories(two);
        save_python(State::Map{{"weight", kSaved}, {"bias", torch::ones(2)}}, one / "pytorch_model.bin");
        save_python(State::Map{{"weight", kSaved + 1}}, two / "a.bin");
        save_python(State::Map{{"bias", torch::ones(2)}}, two / "b.bin");
        std::ofstream(two / "pytorch_model.bin.index.json")
            << R"({"weight_map": {"weight": "a.bin", "bias": "b.bin"}})";
      }
      accelerator.wait_for_everyone();
      accelerator.load_model(model, one);
      EXPECT_TRUE(torch::equal(model.prepared()->managed->full_state(false).at(0).second, kSaved)) << way;
      accelerator.load_model(model, two);
      EXPECT_TRUE(torch::equal(model.prepared()->managed->full_state(false).at(0).second, kSaved + 1)) << way;
      accelerator.wait_for_everyone();
    }
  });
}

}  // namespace
}  // namespace muster
