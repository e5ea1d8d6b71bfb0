#include "muster/precision/grad_scaler.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/testing/thrown.h"

namespace muster::precision {
namespace {

using json = nlohmann::json;

constexpr GradScalerOptions kFactors{.growth_interval = 3, .init_scale = 1024};

TEST(GradScaler, DoesAsPyTorchStepByStep) {
  const auto cases =
      json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/precision/grad_scaler_cases.json"));
  ASSERT_EQ(cases.at("factors").at("growth_interval"), kFactors.growth_interval);
  GradScaler scaler(kFactors);
  auto parameter = torch::tensor({1.0f, -2.0f, 3.0f});
  for (const auto& row : cases.at("steps")) {
    SCOPED_TRACE(row.dump());
    auto gradient = torch::tensor(row.at("gradient").get<std::vector<float>>()) * scaler.scale();
    if (const std::string bad = row.at("bad"); !bad.empty()) gradient[1] = std::stod(bad);
    const double scale = scaler.scale();
    scaler.unscale({gradient}, scale);
    const bool found = scaler.found_inf();
    if (!found) parameter.sub_(gradient, 0.1);
    scaler.update(found, scale);
    EXPECT_EQ(found, row.at("skipped").get<bool>());
    EXPECT_EQ(scaler.state_dict(), (GradScalerState{row.at("growth_tracker"), row.at("scale")}));
    EXPECT_TRUE(torch::allclose(parameter, torch::tensor(row.at("parameter").get<std::vector<float>>()), 1e-6, 1e-7));
  }
}

TEST(GradScaler, UnscalesEveryDtypeAndSeesTheOneThatIsNotFinite) {
  GradScaler scaler(kFactors);
  std::vector<torch::Tensor> gradients;
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
    gradients.push_back(torch::full({3}, 8.0, dtype));
  gradients.emplace_back();
  gradients.push_back(torch::empty({0}));
  scaler.unscale(gradients, 4);
  EXPECT_FALSE(scaler.found_inf());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(gradients[i].sum().item<double>(), 6) << i;
  gradients[2][1] = std::numeric_limits<double>::quiet_NaN();
  scaler.unscale(gradients, 1);
  EXPECT_TRUE(scaler.found_inf());
  scaler.update(true, 1024);
  EXPECT_FALSE(scaler.found_inf());
}

TEST(GradScaler, ASmallerScaleThanItsOwnSaysNothingAboutGrowing) {
  GradScaler scaler(kFactors);
  for (int i = 0; i < 9; ++i) scaler.update(false, 256);
  EXPECT_EQ(scaler.state_dict(), (GradScalerState{0, 1024}));
  scaler.update(true, 256);
  EXPECT_EQ(scaler.scale(), 128);  // it is the scale in use that was too large
}

TEST(GradScaler, AScaleThatCannotBeUndoneEndsTheJobWithAReason) {  // MU318
  GradScaler scaler(kFactors);
  auto gradient = torch::ones({2});
  int steps = 0;
  const auto text = testing::thrown([&] {
    for (; steps < 1000; ++steps) {
      scaler.unscale({gradient}, scaler.scale());
      scaler.update(true, scaler.scale());
    }
  });
  EXPECT_TRUE(text.starts_with("MU318")) << text;
  EXPECT_GT(steps, 100);
}

TEST(GradScaler, SavesAndLoadsASmallValue) {
  GradScaler one(kFactors), other;
  one.update(true, one.scale());
  one.update(false, one.scale());
  other.load_state_dict(one.state_dict());
  EXPECT_EQ(other.state_dict(), (GradScalerState{1, 512}));
  EXPECT_EQ(testing::thrown_id([&] { other.load_state_dict({0, INFINITY}); }), "MU147");
  EXPECT_EQ(testing::thrown_id([&] { other.load_state_dict({-1, 1}); }), "MU147");
  EXPECT_EQ(other.scale(), 512);
}

TEST(GradScaler, RefusesFactorsThatCannotWork) {
  EXPECT_EQ(testing::thrown_id([] { GradScaler scaler({.growth_factor = 1}); }), "MU149");
  EXPECT_EQ(testing::thrown_id([] { GradScaler scaler({.backoff_factor = 1.5}); }), "MU149");
  EXPECT_EQ(testing::thrown_id([] { GradScaler scaler({.growth_interval = 0}); }), "MU149");
  EXPECT_EQ(testing::thrown_id([] { GradScaler scaler({.init_scale = -1}); }), "MU149");
  for (const double scale : {1e300, 1e-300})  // float32 holds neither
    EXPECT_EQ(testing::thrown_id([&] { GradScaler scaler({.init_scale = scale}); }), "MU149") << scale;
}

}  // namespace
}  // namespace muster::precision
