#include <string>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/precision/autocast.h"
#include "muster/precision/policy.h"
#include "muster/testing/thrown.h"

namespace muster::precision {
namespace {

TEST(Precision, KnowsTheWordsOfAccelerateAndLightning) {
  EXPECT_EQ(Precision::parse("no"), Precision("32-true"));
  EXPECT_EQ(Precision::parse("bf16"), Precision("bf16-mixed"));
  EXPECT_EQ(Precision::parse("64").name(), "64-true");
  EXPECT_EQ(Precision("bf16-true").name(), "bf16-true");
  EXPECT_EQ(Precision::parse("fp16").name(), "16-mixed");
  EXPECT_EQ(Precision("16-true").name(), "16-true");
}

TEST(Precision, ListsTheKnownNamesForAnUnknownOne) {
  try {
    Precision::parse("fp8");
    FAIL() << "fp8 was taken";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU130");
    for (const auto& known : kPrecisionNames)
      EXPECT_NE(std::string(error.what()).find(known.name), std::string::npos) << known.name;
  }
}

TEST(Precision, TakesLightningsNumbers) {
  EXPECT_EQ(Precision(16).name(), "16-mixed");
  EXPECT_EQ(Precision(32).name(), "32-true");
  EXPECT_EQ(Precision(64).name(), "64-true");
  for (const int bits : {16, 32, 64}) EXPECT_EQ(Precision::parse(bits), Precision::parse(std::to_string(bits)));
  for (const int bits : {0, 8, -16, 128})
    EXPECT_EQ(testing::thrown([&] { Precision::parse(bits); }),
              "MU130: unknown precision " + std::to_string(bits) +
                  "; the known numbers are 16 (16-mixed), 32 (32-true) and 64 (64-true)");
}

TEST(Precision, TakesADtypeAsItsShortName) {
  EXPECT_EQ(Precision(torch::kBFloat16), Precision("bf16"));
  EXPECT_EQ(Precision(at::kHalf), Precision("fp16"));
  EXPECT_EQ(Precision(torch::kFloat32), Precision("32"));
  EXPECT_EQ(Precision(torch::kDouble), Precision("64"));
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble})
    EXPECT_EQ(compute_dtype(Precision::parse(dtype)), dtype);
  const auto text = testing::thrown([] { Precision::parse(at::kLong); });
  EXPECT_TRUE(text.starts_with("MU130: unknown precision 'another dtype'; the known ones are 32-true")) << text;
  EXPECT_FALSE(TorchDtype<PrecisionKind> || TorchDtype<int>);
}

TEST(AutocastScope, NestsAndRestores) {
  ASSERT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  torch::nn::Linear layer(2, 2);
  {
    AutocastScope outer("bf16-mixed", at::kCPU);
    {
      AutocastScope inner("bf16-mixed", at::kCPU);
      EXPECT_EQ(layer(torch::ones({1, 2})).scalar_type(), torch::kBFloat16);
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  AutocastScope off("32-true", at::kCPU);
  EXPECT_EQ(layer(torch::ones({1, 2})).scalar_type(), torch::kFloat);
}

TEST(AutocastScope, IsSwitchedOffInside) {
  torch::nn::Linear layer(2, 2);
  const auto x = torch::ones({1, 2});
  const AutocastScope outer("16-mixed", at::kCPU);
  EXPECT_EQ(layer(x).scalar_type(), torch::kHalf);
  {
    const AutocastScope off("16-mixed", at::kCPU, {.enabled = false});
    EXPECT_EQ(layer(x).scalar_type(), torch::kFloat);
    const AutocastScope again("bf16-mixed", at::kCPU);
    EXPECT_EQ(layer(x).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(layer(x).scalar_type(), torch::kHalf);
  EXPECT_EQ(in_fp32([&](torch::Tensor t) { return layer(t); }, x.to(torch::kHalf)).scalar_type(), torch::kFloat);
}

TEST(PrecisionPolicy, KeepsNamedModulesInFloat32) {
  const auto make = [] {
    return torch::nn::ModuleList(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2),
                                 torch::nn::ModuleList(torch::nn::Linear(2, 1)));
  };
  auto net = make();
  const auto* handle = net[0]->parameters()[0].unsafeGetTensorImpl();
  PrecisionPolicy("16-true").convert_module(*net, {"1", "2"});
  EXPECT_EQ(net[0]->parameters()[0].scalar_type(), torch::kHalf);
  EXPECT_EQ(net[0]->parameters()[0].unsafeGetTensorImpl(), handle);
  EXPECT_EQ(net[1]->buffers()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(net[2]->parameters()[0].scalar_type(), torch::kFloat);  // below a named one
  const auto text = testing::thrown([&] { PrecisionPolicy("16-true").convert_module(*make(), {"norm"}); });
  EXPECT_TRUE(text.starts_with("MU148")) << text;
  EXPECT_NE(text.find("2.0"), std::string::npos) << text;
}

TEST(PrecisionPolicy, ConvertsModulesInputsAndOutputs) {
  torch::nn::Linear layer(2, 2);
  const auto* handle = layer->weight.unsafeGetTensorImpl();
  PrecisionPolicy("64-true").convert_module(*layer);
  EXPECT_EQ(layer->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(layer->weight.unsafeGetTensorImpl(), handle);
  auto input = torch::ones({2}), whole = torch::ones({2}, torch::kLong);
  PrecisionPolicy("bf16-true").convert_input(input);
  PrecisionPolicy("bf16-true").convert_input(whole);
  EXPECT_EQ(input.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(whole.scalar_type(), torch::kLong);
  PrecisionPolicy("bf16-true").convert_output(input);
  EXPECT_EQ(input.scalar_type(), torch::kFloat);
  auto exact = torch::ones({2}, torch::kDouble);
  PrecisionPolicy("64-true").convert_output(exact);
  EXPECT_EQ(exact.scalar_type(), torch::kDouble);
}

TEST(PrecisionPolicy, TakesOtherDtypesForInputsAndOutputs) {
  const PrecisionPolicy policy("32-true", {.inputs = at::kBFloat16, .outputs = at::kDouble}), plain("32-true");
  auto input = torch::ones({2}), whole = torch::ones({2}, torch::kLong);
  plain.convert_input(input);
  EXPECT_EQ(input.scalar_type(), torch::kFloat);
  policy.convert_input(input);
  policy.convert_input(whole);
  EXPECT_EQ(input.scalar_type(), torch::kBFloat16);
  plain.convert_output(input);
  EXPECT_EQ(input.scalar_type(), torch::kBFloat16);
  policy.convert_output(input);
  policy.convert_output(whole);
  EXPECT_EQ(input.scalar_type(), torch::kDouble);
  EXPECT_EQ(whole.scalar_type(), torch::kLong);
}

}  // namespace
}  // namespace muster::precision
