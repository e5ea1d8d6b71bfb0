#include "device/device.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::device {
namespace {

TEST(Device, CpuIsAlwaysThere) {
  EXPECT_EQ(choose("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(choose("cpu", 3), at::Device(at::kCPU));
  EXPECT_EQ(available().front(), "cpu");
  EXPECT_EQ(static_cast<int>(available().size()), count() + 1);
  EXPECT_FALSE(uses_pinned_memory(at::kCPU));
  set_current(at::kCPU);
  synchronize(at::kCPU);
}

TEST(Device, AutoTakesTheAcceleratorOfTheLocalRank) {
  if (count() == 0) {
    EXPECT_EQ(choose("auto", 1), at::Device(at::kCPU));
    return;
  }
  EXPECT_EQ(choose("auto", count()).index(), 0);
  EXPECT_EQ(choose("gpu", 0).str(), available().at(1));
  EXPECT_EQ(choose(available().back(), 0).index(), count() - 1);
}

void expect_refused(const char* name) {
  try {
    (void)choose(name);
    ADD_FAILURE() << name << " was accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.id(), "MU101");
    for (const auto& device : available()) EXPECT_NE(std::string(e.what()).find(device), std::string::npos) << e.what();
  }
}

TEST(Device, UnknownNamesListWhatIsAvailable) {
  for (const char* name : {"", "tpu9", "cuda:", "cuda:x", "cuda:99999", "cuda:900", "gpu:77"}) expect_refused(name);
  if (count() == 0)
    for (const char* name : {"gpu", "cuda", "accelerator"}) expect_refused(name);
}

TEST(Device, OfAProcessIsOne) {
  try {
    (void)choose("cuda:0,cuda:1");
    ADD_FAILURE() << "two devices were accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.id(), "MU561");
    EXPECT_NE(std::string(e.what()).find("--devices 0,1"), std::string::npos) << e.what();
  }
}

TEST(Device, ThoseOfPyTorchXlaAreRefusedWithTheReason) {
  for (const char* name : {"tpu", "xla", "xla:1", "neuron"}) {
    try {
      (void)choose(name);
      ADD_FAILURE() << name << " was accepted";
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.id(), "MU497");
      EXPECT_NE(std::string(e.what()).find("PyTorch/XLA"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace muster::device
