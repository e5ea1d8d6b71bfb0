// The tests of devices, on a GPU. Without one a single case says so, in place of all others.
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "on_device/test_device.h"

namespace muster {
namespace {

constexpr double kMiB = 1 << 20;

TEST(TestDevice, IsThere) {
  const auto missing = testing::missing_device();
  if (!missing.empty())
    GTEST_SKIP() << missing << ": the other " << ::testing::UnitTest::GetInstance()->total_test_count() - 2
                 << " cases of this program were not run";
}

/// So that it can be carried to where a GPU is. Muster is linked into it.
TEST(ThisProgram, IsSmall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer makes it larger";
#endif
  EXPECT_LT(static_cast<double>(std::filesystem::file_size("/proc/self/exe")) / kMiB, 40);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!muster::testing::missing_device().empty()) GTEST_FLAG_SET(filter, "TestDevice.*:ThisProgram.*");
  return RUN_ALL_TESTS();
}
