#include "muster/precision/policy.h"

#include "muster/testing/thrown.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

namespace muster::precision {
namespace {

TEST(Support, ACpuComputesInAllOfThem) {
  const auto names = supported_precisions(at::kCPU);
  for (const char* name : {"32-true", "64-true", "bf16-true", "bf16-mixed", "16-true", "16-mixed"})
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  require_supported("16-mixed", at::kCPU);
}

TEST(Support, ADeviceThatCannotIsRefusedWithWhatItCan) {
  // No backend of this name is in any LibTorch, so nothing works on it.
  const auto text = testing::thrown([] { require_supported("16-true", at::Device(at::kFPGA, 0)); });
  EXPECT_TRUE(text.starts_with("MU145")) << text;
  EXPECT_NE(text.find("none"), std::string::npos) << text;
}

}  // namespace
}  // namespace muster::precision
