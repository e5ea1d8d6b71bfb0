#include <filesystem>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet;

std::shared_ptr<Callback> scheduler(std::map<int64_t, int> scheduling) {
  return std::make_shared<GradientAccumulationScheduler>(std::move(scheduling));
}

/// global_step after each epoch.
std::vector<int64_t> steps_with(TrainerOptions options) {
  std::vector<int64_t> steps;
  options.callbacks.push_back(std::make_shared<LambdaCallback>(LambdaHooks{
      .on_train_epoch_end = [&](Trainer& trainer, TrainerModule&) { steps.push_back(trainer.global_step()); }}));
  options.max_epochs = 4;
  CountingModule module(4);
  Trainer(quiet(options)).fit(module);
  return steps;
}

TEST(GradientAccumulationScheduler, EachEpochHasItsWindow) {
  EXPECT_EQ(steps_with({.callbacks = {scheduler({{1, 2}, {3, 4}})}}), (std::vector<int64_t>{4, 6, 8, 9}));
  EXPECT_EQ(steps_with({.callbacks = {scheduler({{0, 4}, {2, 1}})}}), (std::vector<int64_t>{1, 2, 6, 10}));
}

TEST(GradientAccumulationScheduler, AfterwardsTheTrainerIsAsBefore) {
  CountingModule module(4);
  Trainer trainer(quiet({.callbacks = {scheduler({{0, 2}})}, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.options().accumulate_grad_batches, 1);
  EXPECT_EQ(trainer.global_step(), 2);
}

TEST(GradientAccumulationScheduler, ARunResumesInsideAWindow) {
  const testing::TemporaryFolder folder;
  const auto saved = folder.path() / "in_window.ckpt";
  const auto options = [&](bool saves) {
    LambdaHooks hooks;
    hooks.on_train_batch_end = [&, saves](Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                          BatchPlace place) {
      if (saves && place.batch_idx == 3) trainer.save_checkpoint(saved);
    };
    return quiet({.callbacks = {scheduler({{0, 3}}), std::make_shared<LambdaCallback>(hooks)}, .max_epochs = 1});
  };
  CountingModule whole(6), rest(6);
  Trainer(options(true)).fit(whole);
  Trainer(options(false)).fit(rest, {.ckpt_path = saved});
  EXPECT_EQ(rest.trained.size(), 2u);
  EXPECT_TRUE(torch::equal(rest.w, whole.w));
}

TEST(GradientAccumulationScheduler, WhatItCannotScheduleIsRefused) {  // MU435, MU451
  for (const auto& wrong : {std::map<int64_t, int>{}, {{-1, 2}}, {{0, 0}}})
    EXPECT_EQ(testing::thrown_id([&] { scheduler(wrong); }), "MU451");
  EXPECT_EQ(testing::thrown_id([] {
              steps_with({.accumulate_grad_batches = 2, .callbacks = {scheduler({{0, 2}})}});
            }),
            "MU435");
  CountingModule manual;
  manual.automatic_optimization = false;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({.callbacks = {scheduler({{0, 2}})}})).fit(manual); }), "MU435");
}

}  // namespace
}  // namespace muster
