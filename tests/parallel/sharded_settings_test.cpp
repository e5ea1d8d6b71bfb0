#include "parallel/sharded/sharded_settings.h"

#include <cmath>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "muster/base/error.h"

namespace muster::parallel {
namespace {

TEST(ShardedSettings, ReadsOptions) {
  const auto settings = read_settings({.limit_gathered_mb = 1.5,
                                       .param_dtype = "bf16",
                                       .predivide_factor = 4,
                                       .reshard_after_forward = false,
                                       .stage = ShardStage::gradients},
                                      2);
  EXPECT_EQ(settings.predivide, 4);
  EXPECT_EQ(read_settings({.reduce_dtype = "f16"}, 2).reduce_dtype, at::kHalf);
  EXPECT_TRUE(settings.keeps_after_forward);
  EXPECT_EQ(settings.limit_bytes, 3 << 19);
  EXPECT_EQ(settings.param_dtype, at::kBFloat16);
  EXPECT_FALSE(settings.reduce_dtype);
  EXPECT_TRUE(settings.keeps_params_unsharded());
  EXPECT_FALSE(read_settings({}, 1).keeps_params_unsharded());
}

TEST(ShardedSettings, TakesDtypesOfLibTorch) {
  const auto settings = read_settings({.buffer_dtype = torch::kBFloat16,
                                       .output_dtype = at::kDouble,
                                       .param_dtype = at::kHalf,
                                       .reduce_dtype = torch::kFloat32},
                                      2);
  EXPECT_EQ(settings.buffer_dtype, at::kBFloat16);
  EXPECT_EQ(settings.output_dtype, at::kDouble);
  EXPECT_EQ(settings.param_dtype, at::kHalf);
  EXPECT_EQ(settings.reduce_dtype, at::kFloat);
  EXPECT_EQ(DtypeName(torch::kBFloat16), "bf16");
}

TEST(ShardedSettings, ANumberSaysOverHowManyValuesStayCut) {
  EXPECT_EQ(read_settings({.reshard_after_forward = 2}, 4).post_forward_size, 2);
  EXPECT_FALSE(read_settings({.reshard_after_forward = 2}, 4).keeps_after_forward);
  EXPECT_EQ(read_settings({.reshard_after_forward = 4}, 4).post_forward_size, 0);  // as true
  EXPECT_FALSE(read_settings({.reshard_after_forward = 4}, 4).keeps_after_forward);
  EXPECT_TRUE(read_settings({.reshard_after_forward = 1}, 4).keeps_after_forward);  // as false
  EXPECT_EQ(read_settings({.reshard_after_forward = 2, .stage = ShardStage::gradients}, 4).post_forward_size, 0);
}

TEST(ShardedSettings, ALimitBeyondAllMemoryIsNone) {
  for (const double limit : {1e300, HUGE_VAL})
    EXPECT_GT(read_settings({.limit_gathered_mb = limit}, 4).limit_bytes, 1LL << 60) << limit;
}

TEST(ShardedSettings, RefusesWhatCannotBeKept) {  // MU168
  const auto message = [](const ShardedOptions& options) {
    try {
      read_settings(options, 4);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU168");
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  EXPECT_NE(message({.param_dtype = "bf17"}).find("the known ones are f32, float32"), std::string::npos);
  EXPECT_NE(message({.reduce_dtype = "int8"}).find("reduce_dtype 'int8'"), std::string::npos);
  EXPECT_NE(message({.limit_gathered_mb = -1}).find("limit_gathered_mb"), std::string::npos);
  EXPECT_NE(message({.predivide_factor = -2}).find("predivide_factor"), std::string::npos);
  EXPECT_NE(message({.predivide_factor = INFINITY}).find("predivide_factor"), std::string::npos);
  EXPECT_NE(message({.buffer_dtype = "int8"}).find("buffer_dtype 'int8'"), std::string::npos);
  EXPECT_NE(message({.param_dtype = at::kLong}).find("param_dtype 'ScalarType 4'"), std::string::npos);
  EXPECT_NE(message({.output_dtype = "f8"}).find("output_dtype 'f8'"), std::string::npos);
  for (const int ranks : {-2, 0, 3, 8})
    EXPECT_NE(message({.reshard_after_forward = ranks}).find("reshard_after_forward"), std::string::npos) << ranks;
  EXPECT_NE(message({.stage = ShardStage::none}).find("\"ddp\""), std::string::npos);
}

}  // namespace
}  // namespace muster::parallel
