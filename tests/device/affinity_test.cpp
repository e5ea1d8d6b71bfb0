#include <sched.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/processor.h"
#include "muster/base/temporary_folder.h"

namespace muster::device {
namespace {

namespace fs = std::filesystem;

/// What a system says of its cores and devices: two NUMA nodes of four processors with two threads each, and two GPUs
/// near each.
class Affinity : public ::testing::Test {
 protected:
  Affinity() {
    plant("proc/sys/kernel/random/boot_id", "machine");
    plant("sys/devices/system/cpu/online", "0-15");
    for (int core = 0; core < 16; ++core)
      plant_siblings(core, std::to_string(core % 8) + "," + std::to_string(core % 8 + 8));
    for (const auto* gpu : {"0000:0a:00.0", "0000:1b:00.0"}) plant_near(gpu, "0-3,8-11");
    for (const auto* gpu : {"0000:8a:00.0", "0000:9b:00.0"}) plant_near(gpu, "4-7,12-15");
    plant_near("0000:ff:00.0", "0-15");
  }
  ~Affinity() override { fs::remove_all(root_); }

  void plant(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }
  void plant_siblings(int core, const std::string& list) const {
    plant("sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/thread_siblings_list", list);
  }
  void plant_near(const std::string& address, const std::string& list) const {
    plant("sys/bus/pci/devices/" + address + "/local_cpulist", list);
  }
  std::string root() const { return root_.string(); }
  NearCores near(const std::string& address, const Environment& variables = {}, const char* own = "0-15") const {
    return near_cores(address, read_cores(own), variables, root());
  }
  std::string message(const std::string& address) const { return near_cores_message(near(address), root()); }
  /// The cores of each rank whose device is at one of these addresses, or the reason.
  std::vector<std::string> shares(const std::vector<std::string>& addresses) const {
    std::vector<std::string> messages, shares;
    for (const auto& address : addresses) messages.push_back(message(address));
    for (size_t rank = 0; rank < messages.size(); ++rank)
      shares.push_back(shown(share_of_rank(messages, rank, root())));
    return shares;
  }
  static std::string shown(const NearCores& cores) {
    return cores.reason.empty() ? core_list(cores.cores) : cores.reason;
  }

 private:
  fs::path root_ = new_temporary_folder("muster-affinity-test");
};

using Words = std::vector<std::string>;

TEST_F(Affinity, ListsOfCoresAreLinuxs) {
  EXPECT_EQ(read_cores("0-3,8"), (Cores{0, 1, 2, 3, 8}));
  EXPECT_EQ(read_cores("8,0-1,1"), (Cores{0, 1, 8}));
  for (const auto* wrong : {"", "a", "0-", "-1", "3-1", "0,,1", "99999"})
    EXPECT_EQ(read_cores(wrong), Cores()) << wrong;
  EXPECT_EQ(core_list({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(core_list({}), "");
}

TEST_F(Affinity, CoresNearADeviceAreTheSystems) {
  EXPECT_EQ(core_list(near("0000:0A:00.0").cores), "0-3,8-11") << "the driver writes capitals";
  EXPECT_EQ(near("0000:77:00.0").reason, "the system does not say which cores are near the device at 0000:77:00.0");
  EXPECT_EQ(near("0000:ff:00.0").reason, "all cores are as near to the device");
  EXPECT_EQ(near("").reason, "the device's place on the PCI bus is not known");
}

TEST_F(Affinity, WhoHasPlacedThreadsIsFollowed) {
  EXPECT_EQ(near("0000:0a:00.0", {}, "0-7").reason, "this process was given the cores 0-7 of 0-15");
  EXPECT_EQ(near("0000:0a:00.0", {{"OMP_PROC_BIND", "close"}}).reason, "OMP_PROC_BIND is close");
  EXPECT_EQ(near("0000:0a:00.0", {{"GOMP_CPU_AFFINITY", "0-3"}}).reason, "GOMP_CPU_AFFINITY is 0-3");
}

TEST_F(Affinity, RanksNearTheSameCoresShareThemByProcessor) {
  EXPECT_EQ(shares({"0000:0a:00.0"}), Words{"0-3,8-11"});
  EXPECT_EQ(shares({"0000:0a:00.0", "0000:8a:00.0"}), (Words{"0-3,8-11", "4-7,12-15"}));
  EXPECT_EQ(shares({"0000:8a:00.0", "0000:0a:00.0", "0000:9b:00.0", "0000:1b:00.0"}),
            (Words{"4-5,12-13", "0-1,8-9", "6-7,14-15", "2-3,10-11"}));
  EXPECT_EQ(shares({"0000:0a:00.0", "0000:0a:00.0", "0000:1b:00.0"}), (Words{"0,8", "1,9", "2-3,10-11"}));
  plant_siblings(0, "");
  EXPECT_EQ(shares({"0000:0a:00.0", "0000:1b:00.0"}), (Words{"0-1,9", "2-3,8,10-11"})) << "0 and 8 are apart now";
}

TEST_F(Affinity, CoresThatCannotBeSharedOutAreNotChosen) {
  for (const auto& share : shares(Words(5, "0000:0a:00.0")))
    EXPECT_EQ(share, "5 ranks have the same 4 near processors");
  plant_near("0000:9b:00.0", "3-7,12-15");
  EXPECT_EQ(shares({"0000:0a:00.0", "0000:9b:00.0"}),
            (Words{"its near cores (0-3,8-11) are partly those of rank 1 (3-7,12-15)",
                   "its near cores (3-7,12-15) are partly those of rank 0 (0-3,8-11)"}));
}

TEST_F(Affinity, RanksOfOtherMachinesAndThoseThatChooseNoneTakeNone) {
  const auto own = message("0000:0a:00.0");
  plant("proc/sys/kernel/random/boot_id", "another");
  const auto other = message("0000:1b:00.0"), none = near_cores_message({{}, "off"}, root());
  EXPECT_EQ(core_list(share_of_rank({own, other, none}, 0, root()).cores), "0-3,8-11");
  EXPECT_EQ(core_list(share_of_rank({own, other, none}, 1, root()).cores), "0-3,8-11");
}

TEST_F(Affinity, ThreadsMoveUnlessTheyHaveAPlaceOfTheirOwn) {
  const auto before = own_cores();
  if (before.size() < 2) GTEST_SKIP() << "this process may run on one core only";
  const Cores first{before.front()}, last{before.back()};
  std::promise<void> moved, placed;
  const auto has_moved = moved.get_future().share();
  Cores of_other, of_placed;
  std::thread other([&] { has_moved.wait(), of_other = own_cores(); });
  std::thread with_place([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(first.front()), &set);
    EXPECT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
    placed.set_value();
    has_moved.wait();
    of_placed = own_cores();
  });
  placed.get_future().wait();
  EXPECT_EQ(run_on(last), "");
  moved.set_value();
  other.join();
  with_place.join();
  EXPECT_EQ(own_cores(), last);
  EXPECT_EQ(of_other, last);
  EXPECT_EQ(of_placed, first);
  std::thread([&] { EXPECT_EQ(own_cores(), last); }).join();
  EXPECT_EQ(run_on(before), "");
  EXPECT_EQ(own_cores(), before);
}

TEST_F(Affinity, CoresThatTheMachineLacksAreRefused) {
  const auto before = own_cores();
  EXPECT_EQ(run_on({8000}), "Invalid argument");
  EXPECT_EQ(own_cores(), before);
}

}  // namespace
}  // namespace muster::device
