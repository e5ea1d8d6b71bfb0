#include "trainer/limits.h"

#include <string>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/thrown.h"
#include "muster/trainer.h"

namespace muster::trainer {
namespace {

std::string message_of(const TrainerOptions& options) {
  try {
    checked(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Limits, EveryContradictionIsNamedAtOnce) {  // MU440
  const auto message = message_of({.accumulate_grad_batches = 0,
                                   .callbacks = {std::make_shared<ModelCheckpoint>()},
                                   .enable_checkpointing = false,
                                   .fast_dev_run = -1,
                                   .limit_train_batches = 1.5,
                                   .limit_val_batches = -1,
                                   .max_epochs = -2,
                                   .max_steps = -3,
                                   .num_sanity_val_steps = -2,
                                   .reload_dataloaders_every_n_epochs = -1});
  EXPECT_TRUE(message.starts_with("MU440")) << message;
  for (const auto* name :
       {"accumulate_grad_batches", "enable_checkpointing", "fast_dev_run", "limit_train_batches", "limit_val_batches",
        "max_epochs", "max_steps", "num_sanity_val_steps", "reload_dataloaders_every_n_epochs"})
    EXPECT_NE(message.find(name), message.npos) << name << " in " << message;
  EXPECT_EQ(message_of({}), "no error");
  EXPECT_NE(message_of({.check_val_every_n_epoch = std::nullopt}), "no error");
  EXPECT_EQ(message_of({.check_val_every_n_epoch = std::nullopt, .val_check_interval = 4}), "no error");
}

TEST(Limits, ABareRunContradictsWhatItLeavesOut) {
  const auto message = message_of({.barebones = true,
                                   .callbacks = {std::make_shared<ModelCheckpoint>()},
                                   .detect_anomaly = true,
                                   .fast_dev_run = 1,
                                   .num_sanity_val_steps = 3});
  for (const auto* part : {"ModelCheckpoint", "detect_anomaly", "fast_dev_run", "num_sanity_val_steps is 3"})
    EXPECT_NE(message.find(part), message.npos) << part << " in " << message;
  EXPECT_EQ(message_of({.barebones = true}), "no error");
  EXPECT_NE(message_of({.fast_dev_run = 1, .overfit_batches = 1}).find("overfit_batches"), std::string::npos);
  EXPECT_NE(message_of({.max_time = std::chrono::seconds(-1)}).find("max_time is negative"), std::string::npos);
}

TEST(Limits, AnExplicitTimeIsReadAsLightningWritesIt) {
  EXPECT_EQ(TimeSpan::parse("01:02:03:04")->value(), std::chrono::seconds(((24 + 2) * 60 + 3) * 60 + 4));
  EXPECT_EQ(TimeSpan::parse("00:12:00:00")->text(), "00:12:00:00");
  for (const auto* wrong : {"", "12:00:00", "00:12:00:0", "0x:12:00:00", "00:12:00:00:00", "-1:12:00:00", ":00:00:00"})
    EXPECT_FALSE(TimeSpan::parse(wrong)) << wrong;
}

TEST(Limits, UnsetEpochsFollowFromSteps) {
  EXPECT_EQ(checked({.max_time = "00:12:00:00"}).max_epochs, -1);
  EXPECT_EQ(checked({}).max_epochs, 1000);
  EXPECT_EQ(checked({.max_steps = 5}).max_epochs, -1);
  EXPECT_EQ(checked({.min_steps = 5}).min_epochs, 1);
  EXPECT_FALSE(checked({.gradient_clip_val = 0.0}).gradient_clip_val.has_value());
}

TEST(Limits, ANumberAndAPartDiffer) {
  EXPECT_EQ(batches_of(1, 10, "limit"), 1);
  EXPECT_EQ(batches_of(1.0, 10, "limit"), 10);
  EXPECT_EQ(batches_of(0.25, 10, "limit"), 2);
  EXPECT_EQ(batches_of(20, 10, "limit"), 10);
  EXPECT_EQ(batches_of(0.0, std::nullopt, "limit"), 0);
  EXPECT_EQ(batches_of(1.0, std::nullopt, "limit"), std::nullopt);
  EXPECT_EQ(batches_of(3, std::nullopt, "limit"), 3);
  EXPECT_EQ(batches_of(0.5, 0, "limit"), 0);
  EXPECT_EQ(testing::thrown_id([] { batches_of(0.05, 10, "limit"); }), "MU445");
  EXPECT_EQ(testing::thrown_id([] { batches_of(0.5, std::nullopt, "limit"); }), "MU445");
}

TEST(Limits, ValidationIntervalsRoundDown) {
  EXPECT_EQ(validation_interval(0.25, 10, false), 2);
  EXPECT_EQ(validation_interval(0.3, 10, false), 3);
  EXPECT_EQ(validation_interval(0.01, 10, false), 1);
  EXPECT_EQ(validation_interval(1.0, 10, false), std::nullopt);
  EXPECT_EQ(validation_interval(15, 10, true), 15);
  EXPECT_EQ(testing::thrown_id([] { validation_interval(15, 10, false); }), "MU445");
  EXPECT_EQ(testing::thrown_id([] { validation_interval(0.5, std::nullopt, false); }), "MU445");
}

}  // namespace
}  // namespace muster::trainer
