#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/precision/policy.h"
#include "muster/testing/thrown.h"
#include "precision/emulation.h"

namespace muster::precision {
namespace {

TEST(Support, ACpuComputesInAllOfThem) {
  const auto names = supported_precisions(at::kCPU);
  for (const char* name : {"32-true", "64-true", "bf16-true", "bf16-mixed", "16-true", "16-mixed"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  require_supported("16-mixed", at::kCPU);
}

TEST(Support, SaysWhatACpuOnlyEmulates) {
  for (const char* name : {"32-true", "64-true"})
    for (const bool native : {false, true}) EXPECT_FALSE(emulation_on_cpu(Precision::parse(name), native)) << name;
  for (const char* name : {"bf16-true", "bf16-mixed"}) {
    EXPECT_FALSE(emulation_on_cpu(Precision::parse(name), true)) << name;
    const auto said = emulation_on_cpu(Precision::parse(name), false).value_or("nothing");
    for (const char* word : {name, "emulates bfloat16", "two to three times slower", "32-true"})
      EXPECT_NE(said.find(word), std::string::npos) << said;
  }
  EXPECT_NE(emulation_on_cpu("16-mixed", true).value_or("").find("; bf16-mixed computes natively"), std::string::npos);
  EXPECT_NE(emulation_on_cpu("16-true", true).value_or("").find("; bf16-true computes natively"), std::string::npos);
  EXPECT_NE(emulation_on_cpu("16-mixed", false).value_or("").find("; 32-true computes natively"), std::string::npos);
}

TEST(Support, ADeviceThatCannotIsRefusedWithWhatItCan) {
  // No backend of this name is in any LibTorch, so nothing works on it.
  const auto text = testing::thrown([] { require_supported("16-true", at::Device(at::kFPGA, 0)); });
  EXPECT_TRUE(text.starts_with("MU145")) << text;
  EXPECT_NE(text.find("none"), std::string::npos) << text;
}

}  // namespace
}  // namespace muster::precision
