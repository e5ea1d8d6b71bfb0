#include <set>
#include <string>

#include <gtest/gtest.h>

#include "muster/strategy/options.h"
#include "muster/testing/thrown.h"
#include "options/strategy_fields.h"

namespace muster {
namespace {

using options::Follow;
using testing::thrown;
using testing::thrown_id;

TEST(StrategyNames, OursSayWhatIsCut) {
  EXPECT_EQ(Strategy("zero1").sharding()->stage, ShardStage::optimizer);
  EXPECT_EQ(Strategy("zero2").sharding()->stage, ShardStage::gradients);
  EXPECT_EQ(Strategy("fsdp").sharding()->stage, ShardStage::full);
  EXPECT_EQ(Strategy("zero3").name(), "fsdp");
  EXPECT_EQ(Strategy("hsdp").sharding()->shard_group_size, -1);
  for (const char* whole : {"auto", "ddp", "ddp_find_unused_parameters_true"})
    EXPECT_EQ(Strategy(whole).sharding(), nullptr) << whole;
}

TEST(StrategyNames, OfPythonMeanOurs) {
  struct {
    const char *name, *ours;
    bool reshard;
  } const cases[] = {{"deepspeed", "zero2", true},
                     {"deepspeed_stage_1", "zero1", true},
                     {"deepspeed_stage_2", "zero2", true},
                     {"deepspeed_stage_3", "fsdp", true},
                     {"fsdp_native", "fsdp", true},
                     {"FULL_SHARD", "fsdp", true},
                     {"SHARD_GRAD_OP", "fsdp", false},
                     {"NO_SHARD", "ddp", true},
                     {"HYBRID_SHARD", "hsdp", true},
                     {"_HYBRID_SHARD_ZERO2", "hsdp", false},
                     {"ddp_sharded", "zero2", true},
                     {"full_shard", "fsdp", true},
                     {"FSDP", "fsdp", true},
                     {"ddp_spawn", "ddp", true},
                     {"DDPFullyShardedStrategy", "fsdp", true},
                     {"DDPFullyShardedNativeStrategy", "fsdp", true},
                     {"FSDPStrategy", "fsdp", true},
                     {"DeepSpeedStrategy", "zero2", true},
                     {"ShardedDataParallel", "zero2", true}};
  for (const auto& [name, ours, reshard] : cases) {
    const auto strategy = Strategy::parse(name);
    EXPECT_EQ(strategy.name(), ours) << name;
    if (strategy.sharding()) {
      EXPECT_EQ(strategy.sharding()->reshard_after_forward, reshard) << name;
    }
  }
}

TEST(StrategyNames, EachAliasIsInSmallLettersOnceAndMeansSomething) {
  std::set<std::string_view> names(std::begin(Strategy::kNames), std::end(Strategy::kNames));
  for (const auto& alias : options::foreign_words(options::Place::strategy)) {
    EXPECT_TRUE(names.insert(alias.word).second) << alias.word;
    EXPECT_TRUE(alias.follow == Follow::option || alias.follow == Follow::refused) << alias.word;
    EXPECT_FALSE(alias.text.empty()) << alias.word;
    for (const char c : alias.word) EXPECT_FALSE(c >= 'A' && c <= 'Z') << alias.word;
    if (alias.follow == Follow::option) {
      EXPECT_NO_THROW(Strategy::parse(alias.word)) << alias.word;
    }
  }
}

TEST(StrategyNames, WhatIsNotThereSaysWhatToUse) {
  for (const char* name : {"fsdp_cpu_offload", "deepspeed_stage_3_offload", "deepspeed_stage_2_offload",
                           "fsdp_native_full_shard_offload", "dp", "model_parallel", "xla", "xla_fsdp"})
    EXPECT_EQ(thrown_id([&] { Strategy{name}; }), "MU197") << name;
  const auto offload = thrown([] { Strategy{"fsdp_cpu_offload"}; });
  EXPECT_NE(offload.find("'fsdp'"), std::string::npos) << offload;
  const auto unknown = thrown([] { Strategy{"fdsp"}; });
  EXPECT_EQ(unknown.substr(0, 5), "MU170");
  for (const char* known : {"zero1", "hsdp", "deepspeed_stage_2"})
    EXPECT_NE(unknown.find(known), std::string::npos) << unknown;
}

TEST(StrategyNames, OptionsFindTheirName) {
  EXPECT_EQ(Strategy(FSDP{}).name(), "fsdp");
  EXPECT_EQ(Strategy(FSDP{.shard_group_size = 4}).name(), "hsdp");
  EXPECT_EQ(Strategy(FSDP{.stage = ShardStage::optimizer}).name(), "zero1");
  EXPECT_EQ(Strategy(FSDP{.stage = ShardStage::none}).name(), "ddp");
  EXPECT_EQ(Strategy(DDP{}).name(), "ddp");
}

}  // namespace
}  // namespace muster
