#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/runtime/extras.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

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

}  // namespace
}  // namespace muster
