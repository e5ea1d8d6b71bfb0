#include "launcher/devices.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "launcher/process.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

struct Case {
  DeviceRequest request;
  int count;
  std::vector<int> indices;
};

TEST(Devices, CountsAndListsMeanWhatUsersOfLightningExpect) {
  const Case cases[] = {
      {{"cpu", "3", 0}, 3, {}},    {{"", "2", 0}, 2, {}},           {{"auto", "auto", 0}, 1, {}},
      {{"cpu", "auto", 4}, 1, {}}, {{"", "auto", 4}, 4, {}},        {{"cuda", "-1", 4}, 4, {}},
      {{"cuda", "3", 4}, 3, {}},   {{"gpu", "3,", 4}, 1, {3}},      {{"", "0,2", 4}, 2, {0, 2}},
      {{"cuda", "0,", 4}, 1, {0}}, {{"cuda", "2,0", 4}, 2, {2, 0}},
  };
  for (const auto& one : cases) {
    auto choice = choose_devices(one.request);
    EXPECT_EQ(choice.count, one.count) << one.request.devices;
    EXPECT_EQ(choice.indices, one.indices) << one.request.devices;
  }
}

TEST(Devices, XlaDevicesAreThoseOfABackendThatTheProgramLoads) {
  for (const char* kind : {"tpu", "xla", "neuron"}) {
    EXPECT_EQ(choose_devices({kind, "4", 0}).count, 4);
    EXPECT_EQ(choose_devices({kind, "auto", 2}).count, 2) << "loaded";
    try {
      choose_devices({kind, "auto", 0});
      ADD_FAILURE() << kind << " was taken";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU497");
      EXPECT_NE(std::string(error.what()).find(std::string("--accelerator is '") + kind), std::string::npos);
    }
  }
}

TEST(Devices, WhatIsWrongIsRefusedWithMU030) {
  const DeviceRequest wrong[] = {
      {"cpu", "0", 0},    {"cpu", "-1", 0},  {"cpu", "0,2", 0},   {"", "0,2", 0},      {"cpu", "", 0},
      {"cpu", "1.5", 0},  {"cuda", "2", 0},  {"cuda", "0", 4},    {"cuda", "5", 4},    {"cuda", "-2", 4},
      {"cuda", "0,0", 4}, {"cuda", "4,", 4}, {"cuda", "0,-1", 4}, {"cuda", "a", 4},    {"cuda", "1.0", 4},
      {"cuda", "", 4},    {"cuda", ",", 4},  {"cuda", "True", 4}, {"cpu", "99999", 0},
  };
  for (const auto& request : wrong) {
    try {
      auto choice = choose_devices(request);
      ADD_FAILURE() << "'" << request.devices << "' was taken for " << choice.count;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU030");
      EXPECT_NE(std::string(error.what()).find("'" + request.devices + "'"), std::string::npos) << error.what();
    }
  }
}

TEST(Devices, AcceleratorsAreCountedWithoutADriver) {
  testing::Folder root;
  EXPECT_EQ(count_accelerators({}, root.path()), 0);
  for (const char* list : {"0", "0,1", "GPU-a", "MIG-a,MIG-b"})
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"})
      EXPECT_EQ(count_accelerators({{name, list}}, root.path()), 0) << "no driver, but " << name << "=" << list;
  std::filesystem::create_directories(root.path() + "/sys/class/kfd/kfd/topology/nodes/0");
  std::filesystem::create_directories(root.path() + "/sys/class/kfd/kfd/topology/nodes/1");
  root.write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8\nsimd_count 0\n", 0644);
  root.write("sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 304\n", 0644);
  EXPECT_EQ(count_accelerators({}, root.path()), 1);
  for (auto gpu : {"0000:01:00.0", "0000:02:00.0"})
    std::filesystem::create_directories(root.path() + "/proc/driver/nvidia/gpus/" + gpu);
  EXPECT_EQ(count_accelerators({}, root.path()), 2);
  EXPECT_EQ(count_accelerators({{"CUDA_VISIBLE_DEVICES", "1,3,5"}}, root.path()), 3);
  EXPECT_EQ(count_accelerators({{"CUDA_VISIBLE_DEVICES", "-1"}}, root.path()), 0);
}

TEST(Devices, ADriverShowsItselfInContainersToo) {
  for (const char* sign : {"dev/nvidiactl", "dev/dxg", "dev/nvmap", "dev/kfd"}) {
    testing::Folder root;
    std::filesystem::create_directory(root.path() + "/dev");
    root.write(sign, "", 0644);
    EXPECT_EQ(count_accelerators({}, root.path()), 0) << sign;
    EXPECT_EQ(count_accelerators({{"CUDA_VISIBLE_DEVICES", "0,1"}}, root.path()), 2) << sign;
    root.write("dev/nvidia0", "", 0644);
    root.write("dev/nvidia-uvm", "", 0644);
    EXPECT_EQ(count_accelerators({{"MUSTER_TEST_ROOT", root.path()}}), 1) << sign;
  }
}

TEST(Devices, EntriesOfTheVariableAreIndicesAndUuids) {
  const auto seen = [](const std::string& list) { return visible_devices({{"CUDA_VISIBLE_DEVICES", list}}).value(); };
  using Entries = std::vector<std::string>;
  EXPECT_EQ(visible_devices({}), std::nullopt);
  EXPECT_EQ(seen("1, 3"), (Entries{"1", "3"}));
  EXPECT_EQ(seen("GPU-5d5ba0d6,MIG-c7384736-a75d"), (Entries{"GPU-5d5ba0d6", "MIG-c7384736-a75d"}));
  EXPECT_EQ(seen("0,-1,2"), Entries{"0"}) << "the driver stops at -1";
  EXPECT_EQ(seen("NoDevFiles"), Entries()) << "SLURM's word";
  EXPECT_EQ(visible_devices({{"HIP_VISIBLE_DEVICES", "4"}}), Entries{"4"});
}

TEST(Devices, AnEntryThatTheDriverWouldLeaveOutIsMU573) {
  for (const auto* list : {"0,one,2", "0,,2", "mig-c7384736", "1.5"}) {
    try {
      count_accelerators({{"CUDA_VISIBLE_DEVICES", list}});
      ADD_FAILURE() << list << " was taken";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU573");
      EXPECT_NE(std::string(error.what()).find(std::string("CUDA_VISIBLE_DEVICES is '") + list), std::string::npos);
    }
  }
}

TEST(Devices, ARankSeesItsMigDeviceAlone) {
  const Environment several{{"CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c"}};
  testing::Folder root;
  EXPECT_EQ(devices_of_ranks({"", "2", 0}, choose_devices({"", "2", 0}), {{"CUDA_VISIBLE_DEVICES", "MIG-a"}}),
            std::vector<std::string>())
      << "two processes on the CPU";
  std::filesystem::create_directory(root.path() + "/dev");
  root.write("dev/nvidiactl", "", 0644);
  const auto seen = [&](const char* accelerator, const char* devices, const Environment& variables) {
    const DeviceRequest request{accelerator, devices, count_accelerators(variables, root.path())};
    return devices_of_ranks(request, choose_devices(request), variables);
  };
  using Entries = std::vector<std::string>;
  EXPECT_EQ(seen("cuda", "2", several), (Entries{"MIG-a", "MIG-b"}));
  EXPECT_EQ(seen("", "2,0", several), (Entries{"MIG-c", "MIG-a"}));
  EXPECT_EQ(seen("cpu", "5", several), Entries());
  EXPECT_EQ(seen("cuda", "2", {{"CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"}}), Entries());
}

TEST(Devices, ThereIsAtLeastOneCore) { EXPECT_GE(count_cores(), 1); }

}  // namespace
}  // namespace muster::launcher
