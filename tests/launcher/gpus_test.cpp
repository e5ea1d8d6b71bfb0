#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/devices.h"
#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

using Lines = std::vector<std::string>;

constexpr auto kLong = std::chrono::minutes(1);

const std::string kVersion =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n";
const std::string kDevices =
    "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\n"
    "  MIG 1g.5gb      Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)\n"
    "  MIG 2g.10gb     Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)\n"
    "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-8f6ed3a0-0000-1111-2222-333344445555)\n";
const std::string kTable =
    "\t\033[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
    "GPU0\t X \tNV12\tSYS\tPXB\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tSYS\t0-31,64-95\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNODE\t32-63,96-127\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\tNODE\t X \t\t\t\t\n"
    "\n"
    "Legend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n";

/// A machine below a folder, and a nvidia-smi that says what is in files beside it, while it lives.
class Gpus : public ::testing::Test {
 protected:
  ~Gpus() override { setenv("PATH", before_.c_str(), 1); }

  void have_driver() const { plant("proc/driver/nvidia/version", kVersion); }
  void plant(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_.path() + "/" + name).parent_path());
    root_.write(name, text, 0644);
  }
  /// nvidia-smi is this script, after which the tools of the system are found.
  void have_nvidia_smi(const std::string& script) const {
    root_.write("nvidia-smi", "#!/bin/sh\ncd \"${0%/*}\"\necho \"$*\" >> calls\n" + script, 0755);
    setenv("PATH", (root_.path() + ":" + before_).c_str(), 1);
  }
  void have_no_nvidia_smi() const { setenv("PATH", (root_.path() + "/nothing").c_str(), 1); }
  GpuReport report(std::chrono::milliseconds timeout = kLong) const { return report_gpus(timeout, root_.path()); }
  std::string calls() const { return root_.read("calls"); }

 private:
  Folder root_;
  std::string before_ = std::getenv("PATH");
};

TEST_F(Gpus, DevicesAndMigDevicesAreNamed) {
  EXPECT_EQ(listed_devices(kDevices),
            (Lines{"0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)",
                   "0.0: MIG 1g.5gb (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)",
                   "0.1: MIG 2g.10gb (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)",
                   "1: NVIDIA A100-SXM4-40GB (UUID: GPU-8f6ed3a0-0000-1111-2222-333344445555)"}));
  EXPECT_EQ(listed_devices("No devices found.\n"), Lines());
}

TEST_F(Gpus, LinksAreGatheredByKind) {
  plant("table", kTable), plant("devices", kDevices), have_driver();
  have_nvidia_smi("case \"$1\" in -L) cat devices;; topo) cat table;; esac");
  const auto report = this->report();
  EXPECT_EQ(report.driver, "570.86.15 (/proc/driver/nvidia/version)");
  EXPECT_EQ(report.devices, listed_devices(kDevices));
  EXPECT_EQ(report.links, (Lines{"NV12 (12 NVLinks): GPU0-GPU1", "SYS (between NUMA nodes): GPU0-GPU2, GPU1-GPU2"}));
  EXPECT_EQ(report.problems, Lines());
  EXPECT_EQ(calls(), "-L\ntopo -m\n");
}

TEST_F(Gpus, OneKindOfLinkBetweenAllIsOneLine) {
  const std::string table = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV18\t X \tNV18\nGPU2\tNV18\tNV18\t X \n";
  EXPECT_EQ(listed_links(table), Lines{"NV18 (18 NVLinks): between all 3 GPUs"});
  EXPECT_EQ(listed_links("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"),
            Lines{"PHB (the PCIe host bridge of a processor): GPU0-GPU1"});
  EXPECT_EQ(listed_links("\tGPU0\tGPU1\nGPU0\t X \tNEW\nGPU1\tNEW\t X \n"), Lines{"NEW: GPU0-GPU1"});
  EXPECT_EQ(listed_links("a table of another form\n"), Lines());
}

TEST_F(Gpus, TheDriversVersionIsAskedWhereItsFileIsMissing) {
  have_nvidia_smi("case \"$1\" in -L) echo 'GPU 0: NVIDIA L4 (UUID: GPU-1)';; --query*) echo 550.54.14;; esac");
  EXPECT_EQ(report().driver, "550.54.14 (nvidia-smi)");
  EXPECT_EQ(calls(), "-L\n--query-gpu=driver_version --format=csv,noheader\n") << "one GPU has no links";
}

TEST_F(Gpus, AnNvidiaSmiThatHangsIsEndedAndAskedNoMore) {
  have_driver(), have_nvidia_smi("sleep 1000");
  const auto report = this->report(std::chrono::milliseconds(100));
  EXPECT_EQ(report.problems, Lines{"nvidia-smi has not answered within 1 s"});
  EXPECT_EQ(report.driver, "570.86.15 (/proc/driver/nvidia/version)");
  EXPECT_EQ(calls(), "-L\n");
}

TEST_F(Gpus, AnNvidiaSmiThatFailsIsQuotedAndAskedNoMore) {
  have_nvidia_smi("echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9");
  EXPECT_EQ(report().problems, Lines{"nvidia-smi ended with code 9: NVIDIA-SMI has failed because it could not "
                                     "communicate with the driver."});
  EXPECT_EQ(calls(), "-L\n");
  have_nvidia_smi("kill -SEGV $$");
  EXPECT_EQ(report().problems, Lines{"nvidia-smi ended by signal 11"});
}

TEST_F(Gpus, AMachineWithoutHasNothingToReport) {
  have_no_nvidia_smi();
  EXPECT_EQ(report().driver, "");
  EXPECT_EQ(report().problems, Lines());
  EXPECT_EQ(report().devices, Lines());
  have_driver();
  EXPECT_EQ(report().driver, "570.86.15 (/proc/driver/nvidia/version)");
  EXPECT_EQ(report().problems, Lines{"there is no nvidia-smi in PATH, which would name the devices and their links"});
}

}  // namespace
}  // namespace muster::launcher::testing
