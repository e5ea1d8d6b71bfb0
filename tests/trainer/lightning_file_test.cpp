#include <algorithm>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/checkpoint/python.h"
#include "muster/testing/thrown.h"
#include "muster/trainer.h"
#include "muster/tree/state.h"
#include "runtime/temporary_folder.h"
#include "trainer/checkpoints.h"
#include "trainer/counting_module.h"

namespace muster::from_lightning {

struct Line : TrainerModule {
  struct Options {
    std::string name = "none";
    double rate = 0.5;
  };
  Line() : Line(Options()) {}
  explicit Line(const Options& given) : options(given) { save_hyperparameters(given); }
  Options options;
  torch::Tensor w = register_parameter("w", torch::ones({}));
  int64_t batches = 0;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return ++batches, w * batch.sum(); }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), options.rate); }
};

/// Written by Lightning 2.6.6 at the end of its second epoch: w is -0.5, and the hyper-parameters are rate = 0.25 and
/// width = 3.
constexpr const char* kWritten = MUSTER_SOURCE_DIR "/tests/trainer/lightning.ckpt";

TEST(LightningFile, GivesWeightsHyperparametersAndCounters) {
  const auto made = load_from_checkpoint<Line>(kWritten);
  EXPECT_EQ(made->w.item<float>(), -0.5);
  EXPECT_EQ(made->options.rate, 0.25);
  EXPECT_EQ(made->options.name, "none");
  Line line;
  Trainer trainer(testing::quiet({.max_epochs = 3}));
  trainer.fit(line, testing::CountingModule::numbers(3), {.ckpt_path = kWritten});
  EXPECT_EQ(line.batches, 3);
  EXPECT_EQ(trainer.current_epoch(), 3);
  EXPECT_EQ(trainer.global_step(), 9);
  EXPECT_EQ(line.w.item<float>(), -0.5F - 0.5F * (0 + 1 + 2));
}

/// Written by Python's torch, with objects among the hyper-parameters as Hydra makes them.
TEST(LightningFile, ObjectsAmongHyperparametersAreLeftOut) {
  const std::string written = MUSTER_SOURCE_DIR "/tests/format/python_files/objects.ckpt";
  ::testing::internal::CaptureStderr();
  const auto made = load_from_checkpoint<Line>(written);
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("'hyper_parameters/optimizer', an object of 'functools.partial'"), std::string::npos) << said;
  EXPECT_EQ(made->w.item<float>(), -0.5F);
  EXPECT_EQ(made->options.rate, 0.25);
  Line line;
  Trainer trainer(testing::quiet({.max_epochs = 3}));
  trainer.fit(line, testing::CountingModule::numbers(3), {.ckpt_path = written});
  EXPECT_EQ(line.batches, 3);
  EXPECT_EQ(trainer.global_step(), 9);
}

TEST(LightningFile, AnotherFileIsRefused) {  // MU466
  const testing::TemporaryFolder folder;
  save_python(State::Map{{"w", torch::tensor(7.0F)}}, folder.path() / "w.pt");
  EXPECT_EQ(testing::thrown_id([&] { load_from_checkpoint<Line>(folder.path() / "w.pt"); }), "MU466");
}

}  // namespace muster::from_lightning
