#include "options/strategy_request.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/options_text.h"
#include "muster/strategy/options.h"
#include "muster/strategy/strategy.h"
#include "muster/testing/thrown.h"

namespace muster::strategy {
namespace {

using muster::testing::thrown;
using muster::testing::thrown_id;
using RawOptions = std::vector<std::string>;

/// The fields of a request: "stage=full" becomes "fsdp.stage".
options::RawOptions sharding(const std::string& text) {
  return text.empty() ? options::RawOptions() : options::split_pairs(text, "launcher", "fsdp.", "MU196");
}

FSDP resolved(const Strategy& told, const std::string& text, const Environment& variables = {}) {
  return *resolve_strategy(told, {.fields = sharding(text)}, variables).sharding();
}

TEST(Resolve, ARequestFillsWhatTheProgramLeft) {
  EXPECT_EQ(resolve_strategy("auto", {}, {}).name(), "auto");
  EXPECT_EQ(resolve_strategy("auto", {.name = "zero1"}, {}).name(), "zero1");
  EXPECT_EQ(resolve_strategy("ddp", {.name = "NO_SHARD"}, {}).name(), "ddp");
  EXPECT_EQ(resolve_strategy("auto", {.fields = sharding("stage=gradients")}, {}).name(), "zero2");
  EXPECT_EQ(thrown_id([] { resolve_strategy("ddp", {.name = "fsdp"}, {}); }), "MU171");
  EXPECT_EQ(thrown_id([] { resolve_strategy("ddp", {.fields = sharding("stage=full")}, {}); }), "MU171");
  const auto kept = resolve_strategy(FSDP{.unit_min_elements = 7}, {.name = "fsdp"}, {});
  EXPECT_EQ(kept.sharding()->unit_min_elements, 7);
  EXPECT_FALSE(resolve_strategy("fsdp", {.name = "SHARD_GRAD_OP"}, {}).sharding()->reshard_after_forward);
  EXPECT_EQ(resolve_strategy(FSDP{.shard_group_size = 2}, {.name = "hsdp"}, {}).sharding()->shard_group_size, 2);
}

TEST(Resolve, OptionsAreNamesAndValues) {
  const auto options = resolved(
      "fsdp", "unit_classes=Block,Head,unit_min_elements=1000,auto_wrap=false,param_dtype=bf16,limit_gathered_mb=1.5");
  EXPECT_EQ(options.unit_classes, (RawOptions{"Block", "Head"}));
  EXPECT_EQ(options.unit_min_elements, 1000);
  EXPECT_FALSE(options.auto_wrap);
  EXPECT_EQ(options.param_dtype, "bf16");
  EXPECT_EQ(options.limit_gathered_mb, 1.5);
  EXPECT_EQ(thrown_id([] { resolved("fsdp", "unit_min_elements=many"); }), "MU002");
  EXPECT_EQ(thrown_id([] { resolved("fsdp", "stage=half"); }), "MU002");
  EXPECT_EQ(thrown_id([] { resolved("fsdp", "full"); }), "MU196");
  const auto unknown = thrown([] { resolved("fsdp", "unit_size=3"); });
  EXPECT_EQ(unknown.substr(0, 5), "MU196");
  for (const char* known : {"unit_min_elements", "sharding_strategy"})
    EXPECT_NE(unknown.find(known), std::string::npos) << unknown;
}

TEST(Resolve, SizesOfBucketsAreNumbersFromZero) {  // MU002 MU347
  for (const std::string option : {"ddp.bucket_cap_mb", "ddp.first_bucket_mb"})
    for (const std::string size : {"-1", "nan", "-nan"}) {
      SCOPED_TRACE(option + " " + size);
      const auto message = thrown([&] { check_launch_options("ddp", {{option, {size, "flag --x"}}}); });
      EXPECT_EQ(message.substr(0, 5), "MU002");
      EXPECT_NE(message.find("flag --x"), std::string::npos) << message;
    }
  EXPECT_EQ(thrown_id([] { Strategy(DDP{.bucket_cap_mb = -1}); }), "MU347");
  EXPECT_EQ(thrown_id([] { Strategy(DDP{.first_bucket_mb = std::nan("")}); }), "MU347");
  EXPECT_NO_THROW(Strategy(DDP{.bucket_cap_mb = 0}));
  EXPECT_NO_THROW(check_launch_options("ddp", {{"ddp.bucket_cap_mb", {"0", "flag --x"}}}));
}

TEST(Resolve, AHookWithAnUnknownNameIsRefusedBeforeRanksStart) {  // MU002 MU157
  const auto message = thrown([] { check_launch_options("ddp", {{"ddp.comm_hook", {"fp8", "flag --x"}}}); });
  EXPECT_EQ(message.substr(0, 5), "MU002");
  EXPECT_NE(message.find("none, fp16, bf16, powersgd"), std::string::npos) << message;
  EXPECT_NO_THROW(check_launch_options("ddp", {{"ddp.comm_hook", {"bf16", "flag --x"}}}));
  EXPECT_EQ(thrown_id([] { Strategy(DDP{.comm_hook = "fp8"}); }), "MU157") << "however many ranks there are";
}

TEST(Resolve, TheProgramsOwnValuesAreNotContradicted) {
  const FSDP told{.unit_min_elements = 5};
  EXPECT_EQ(resolved(told, "unit_min_elements=5").unit_min_elements, 5);
  const auto message = thrown([&] { resolved(told, "unit_min_elements=6"); });
  EXPECT_EQ(message.substr(0, 5), "MU171");
  EXPECT_NE(message.find("unit_min_elements"), std::string::npos) << message;
}

TEST(Resolve, VariablesOfAccelerateCountLessThanTheLauncher) {
  const Environment accelerate{{"ACCELERATE_USE_FSDP", "true"},
                               {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
                               {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                               {"FSDP_TRANSFORMER_CLS_TO_WRAP", "GPTBlock,Head"},
                               {"FSDP_MIN_NUM_PARAMS", "100000000"},
                               {"FSDP_OFFLOAD_PARAMS", "false"},
                               {"FSDP_STATE_DICT_TYPE", "SHARDED_STATE_DICT"},
                               {"FSDP_BACKWARD_PREFETCH", "BACKWARD_PRE"},
                               {"FSDP_USE_ORIG_PARAMS", "true"}};
  const auto strategy = resolve_strategy("auto", {}, accelerate);
  EXPECT_EQ(strategy.name(), "fsdp");
  EXPECT_FALSE(strategy.sharding()->reshard_after_forward);
  EXPECT_EQ(strategy.sharding()->unit_classes, (RawOptions{"GPTBlock", "Head"}));
  EXPECT_EQ(strategy.sharding()->unit_min_elements, 0);  // belongs to another policy
  EXPECT_TRUE(resolved("auto", "reshard_after_forward=true", accelerate).reshard_after_forward);
  EXPECT_EQ(resolve_strategy("ddp", {}, accelerate).name(), "ddp");
}

struct Own : TrainingStrategy {
  std::string_view name() const override { return "mine"; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module&, const comm::Communicator&) const override {
    return nullptr;
  }
};

TEST(Resolve, AStrategyOfTheProgramsOwnStays) {
  const auto own = std::make_shared<Own>();
  for (const auto& request : {StrategyRequest{}, StrategyRequest{.name = "auto"}})
    EXPECT_EQ(resolve_strategy(own, request, {{"ACCELERATE_USE_FSDP", "true"}}).custom(), own);
  for (const auto& request :
       {StrategyRequest{.name = "ddp"}, StrategyRequest{.fields = {{"ddp.bucket_cap_mb", {"1", "flag"}}}},
        StrategyRequest{.fields = sharding("stage=full")}}) {
    const auto message = thrown([&] { resolve_strategy(own, request, {}); });
    EXPECT_EQ(message.substr(0, 5), "MU171");
    EXPECT_NE(message.find("'mine'"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace muster::strategy
