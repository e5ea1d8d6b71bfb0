#include "comm/backend_object.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "muster/base/error.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

struct BackendObjects : ::testing::Test {
  BackendObjects() { ::setenv("MUSTER_BACKEND_PATH", MUSTER_BINARY_DIR "/tests/objects:/nowhere", 1); }
  ~BackendObjects() override { ::unsetenv("MUSTER_BACKEND_PATH"); }
};

std::string refused(const DeviceBackend& wanted, c10::DeviceType device = c10::DeviceType::CUDA) {
  return testing::thrown([&] { find_device_backend(wanted, device); });
}

TEST_F(BackendObjects, AreLookedForWhereItIsSaid) {
  const auto message = refused("absent");
  EXPECT_TRUE(message.starts_with("MU558: device_backend is absent, but there is no libmuster_absent.so")) << message;
  for (const char* place :
       {"/tests/objects/libmuster_absent.so", "/nowhere/libmuster_absent.so", "/lib/libmuster_absent.so"})
    EXPECT_NE(message.find(place), std::string::npos) << message;
  EXPECT_TRUE(refused("/nowhere/mine.so").starts_with("MU558")) << refused("/nowhere/mine.so");
}

TEST_F(BackendObjects, ThatAreNoneOrOfAnotherBuildAreRefused) {
  const auto stranger = refused("stranger");
  EXPECT_TRUE(stranger.starts_with("MU562")) << stranger;
  EXPECT_NE(stranger.find("it does not define muster_backend_object"), std::string::npos) << stranger;
  const auto stale = refused(std::string(MUSTER_BINARY_DIR "/tests/objects/libmuster_stale.so"));
  EXPECT_TRUE(stale.starts_with("MU562")) << stale;
  EXPECT_NE(stale.find("built with Muster 0.0, LibTorch 1.13.0, and this program with Muster 0.1"), std::string::npos)
      << stale;
  EXPECT_TRUE(refused(std::string("/etc/hostname")).starts_with("MU562")) << refused(std::string("/etc/hostname"));
}

TEST_F(BackendObjects, AreNotOpenedWhereNoneIsWanted) {
  EXPECT_EQ(find_device_backend("none", c10::DeviceType::CUDA).entry, nullptr);
  EXPECT_EQ(find_device_backend("auto", c10::DeviceType::CPU).entry, nullptr);
  EXPECT_EQ(find_device_backend({}, c10::DeviceType::PrivateUse1).note, "no device_backend is given");
  const auto own = std::make_shared<BackendEntry>(BackendEntry{.device = c10::DeviceType::XPU, .make = {}});
  EXPECT_EQ(find_device_backend(own, c10::DeviceType::XPU).entry, own);
  EXPECT_EQ(find_device_backend(own, c10::DeviceType::CUDA).entry, nullptr);
}

/// The real object, where it was built: no GPU is here.
TEST_F(BackendObjects, OfNcclSaysWhatIsMissing) {
  ::unsetenv("MUSTER_BACKEND_PATH");
  const auto found = find_device_backend("auto", c10::DeviceType::CUDA);
  if (!std::filesystem::exists(MUSTER_BINARY_DIR "/lib/libmuster_nccl.so")) {
    EXPECT_EQ(found.entry, nullptr);
    EXPECT_NE(found.note.find("there is no libmuster_nccl.so"), std::string::npos) << found.note;
    EXPECT_NE(found.note.find("make cuda"), std::string::npos) << found.note;
    EXPECT_TRUE(refused("nccl").starts_with("MU558")) << refused("nccl");
    GTEST_SKIP() << "the object of NCCL is not built: LibTorch has no CUDA, or its headers are missing (make cuda)";
  }
  ASSERT_NE(found.entry, nullptr);
  EXPECT_NE(found.note.find("TORCH_NCCL_ASYNC_ERROR_HANDLING=0, TORCH_NCCL_ENABLE_MONITORING=0"), std::string::npos)
      << found.note;
  EXPECT_TRUE(refused("nccl", c10::DeviceType::CPU).starts_with("MU563")) << refused("nccl", c10::DeviceType::CPU);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(testing::thrown_id([&] { (void)found.entry->make(store, 0, 1, {}); }), "MU563");
}

}  // namespace
}  // namespace muster::comm
