#include <dlfcn.h>

#include <gtest/gtest.h>

#include "device/device.h"

namespace muster::device {
namespace {

constexpr const char* kFake = MUSTER_BINARY_DIR "/tests/objects/libmuster_test_cuda.so";

at::Device cuda(int index) { return {at::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

TEST(CudaDriver, SaysItsVersionAndWhereADeviceIs) {
  if (::dlopen("libcuda.so.1", RTLD_LAZY)) GTEST_SKIP() << "this machine has a driver of its own";
  EXPECT_EQ(cuda_version_of_driver(), std::nullopt);
  EXPECT_EQ(pci_address(cuda(0)), "");
  ASSERT_NE(::dlopen(kFake, RTLD_NOW), nullptr) << ::dlerror();
  EXPECT_EQ(cuda_version_of_driver(), "12.8");
  EXPECT_EQ(pci_address(cuda(1)), "0000:41:00.0");
  EXPECT_EQ(pci_address(cuda(2)), "") << "there are two";
  EXPECT_EQ(pci_address(at::Device(at::kCPU)), "");
}

}  // namespace
}  // namespace muster::device
