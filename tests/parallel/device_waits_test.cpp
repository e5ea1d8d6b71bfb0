#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "parallel/device_training.h"

namespace muster::parallel::on_device {
namespace {

/// What LibTorch's own operators wait for in these models.
const std::set<std::string> kOfLibTorch{};

/// The waits of the host for the devices, by cause, from the second step on.
std::map<std::string, int64_t> host_waits(int size, const Managed& how, bool device_backend = true) {
  sim::set_seed(3);
  std::map<std::string, int64_t> waits;
  EXPECT_EQ(comm::run_device_world(size, {.device_backend = device_backend},
                                   [&](const comm::Communicator& group, at::Device device) {
                                     at::set_num_threads(1);
                                     Training(group, device, how).run([&](int step) {
                                       if (step != 1 && step != how.steps) return;
                                       group.barrier();
                                       if (group.rank() == 0 && step == 1) sim::reset_stats();
                                       if (group.rank() == 0 && step > 1) waits = sim::stats().host_waits;
                                       group.barrier();
                                     });
                                   }),
            "");
  for (const auto& cause : kOfLibTorch) waits.erase(cause);
  return waits;
}

using Waits = std::map<std::string, int64_t>;

TEST(HostWaits, AreNoneInAStepOfReplicatedTraining) {
  sim::install();
  for (const auto hook : kCommHooks)
    EXPECT_EQ(host_waits(2, {.bucket_mb = 0.001, .comm_hook = std::string(hook)}), Waits()) << hook;
  EXPECT_EQ(host_waits(2, {.batch_norm = true}), Waits());
  EXPECT_EQ(host_waits(2, {.local_sgd_steps = 2, .steps = 5}), Waits());
  EXPECT_EQ(host_waits(2, {.streams = Streams::two}), Waits());
}

TEST(HostWaits, AreNoneInAStepOfShardedTraining) {
  sim::install();
  for (const char* name : {"zero1", "zero2", "fsdp"}) {
    EXPECT_EQ(host_waits(2, {.name = name}), Waits()) << name;
    EXPECT_EQ(host_waits(2, {.name = name, .reduce_dtype = "bf16", .streams = Streams::two}), Waits());
    EXPECT_EQ(host_waits(2, {.name = name, .batch_norm = true, .evaluates = true}), Waits());
  }
  EXPECT_EQ(host_waits(4, {.name = "fsdp", .hybrid = true}), Waits());
  EXPECT_EQ(host_waits(4, {.name = "fsdp", .kept_over = 2}), Waits());
}

TEST(HostWaits, AreForStagedCopiesOnlyWithoutABackendOfTheDevice) {
  sim::install();
  for (const char* name : {"ddp", "fsdp"})
    for (const auto& [cause, count] : host_waits(2, {.name = name}, /*device_backend=*/false))
      EXPECT_EQ(cause, "event") << count;
}

}  // namespace
}  // namespace muster::parallel::on_device
