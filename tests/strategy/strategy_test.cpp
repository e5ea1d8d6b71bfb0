#include "muster/strategy/strategy.h"

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"

namespace muster::strategy {
namespace {

TEST(Strategies, AreMadeByName) {
  for (const char* name : {"fsdp", "zero1", "zero2", "ddp"}) EXPECT_EQ(make_strategy(name, 4, 2)->name(), name);
  EXPECT_EQ(make_strategy("auto", 4, 2)->name(), "ddp");
  EXPECT_EQ(make_strategy(FSDP{.stage = ShardStage::none}, 4, 2)->name(), "ddp");
  for (const char* name : {"fsdp", "hsdp", "auto"}) EXPECT_EQ(make_strategy(name, 1, 1)->name(), "single");
  EXPECT_EQ(make_strategy(FSDP{.param_dtype = "bf16"}, 1, 1)->name(),
            "fsdp");  // what is computed does not depend on the ranks
  EXPECT_EQ(make_strategy(FSDP{.output_dtype = "f32", .shard_group_size = 4}, 1, 1)->name(), "hsdp");
}

TEST(Strategies, ShardGroupsMustDivideTheWorld) {
  EXPECT_EQ(make_strategy("hsdp", 4, 2)->name(), "hsdp");
  EXPECT_EQ(make_strategy(FSDP{.shard_group_size = 3}, 6, 2)->name(), "hsdp");
  EXPECT_EQ(muster::testing::thrown_id([] { make_strategy("hsdp", 4, 3); }), "MU198");
  EXPECT_EQ(muster::testing::thrown_id([] { make_strategy(FSDP{.shard_group_size = -2}, 4, 2); }), "MU198");
  EXPECT_EQ(make_strategy(FSDP{.replicas = 3, .shard_group_size = 2}, 6, 2)->name(), "hsdp");
  EXPECT_EQ(muster::testing::thrown_id([] { make_strategy(FSDP{.replicas = 2, .shard_group_size = 2}, 6, 2); }),
            "MU198");
}

struct OwnStrategy : TrainingStrategy {
  std::string_view name() const override { return "mine"; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module&, const comm::Communicator&) const override {
    return nullptr;
  }
};

TEST(Strategies, OfTheProgramsOwnAreUsedInEveryWorld) {
  const auto own = std::make_shared<OwnStrategy>();
  for (const int world : {1, 4}) EXPECT_EQ(make_strategy(own, world, 2), own);
  EXPECT_EQ(Strategy(own).name(), "mine");
  EXPECT_EQ(Strategy(own).custom()->reason(), "given by the program");
  EXPECT_EQ(muster::testing::thrown_id([] { static_cast<void>(Strategy(std::shared_ptr<OwnStrategy>())); }), "MU341");
}

}  // namespace
}  // namespace muster::strategy
