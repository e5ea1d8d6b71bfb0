#include "comm/device_collectives.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/device_results.h"
#include "device/sync_point_filter.h"
#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;

constexpr int kSeeds = 10;

/// The first difference, and errors.
std::string compared(const DeviceWorld& how, const Results& wanted, at::ScalarType dtype) {
  std::vector<std::string> differences(wanted.size());
  auto text = run_device_world(static_cast<int>(wanted.size()), how, [&](const Communicator& comm, at::Device device) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    differences[rank] = first_difference(all_results(comm, dtype, device), wanted[rank], how.device_backend);
  });
  for (const auto& difference : differences) text += difference;
  return text;
}

struct Simulated : ::testing::Test {
  Simulated() { sim::install(); }
};
using DeviceTensors = Simulated;

TEST_F(DeviceTensors, AreStagedThroughHostMemory) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const auto wanted = results_on_the_cpu(3, dtype);
    for (int seed = 0; seed < kSeeds; ++seed) {
      sim::set_seed(static_cast<uint64_t>(seed));
      EXPECT_EQ(compared({.side_stream = seed % 2 == 1}, wanted, dtype), "") << "seed " << seed;
    }
  }
}

TEST_F(DeviceTensors, GoOverTheBackendOfTheDevice) {
  for (const auto dtype : {at::kFloat, at::kLong}) {
    const auto wanted = results_on_the_cpu(3, dtype);
    for (int seed = 0; seed < kSeeds; ++seed) {
      sim::set_seed(static_cast<uint64_t>(seed));
      EXPECT_EQ(compared({.device_backend = true, .side_stream = seed % 2 == 1}, wanted, dtype), "") << "seed " << seed;
    }
  }
}

TEST_F(DeviceTensors, OfDtypesThatTheBackendLacksTravelAsOthers) {
  for (const auto dtype : {at::kShort, at::kBool}) {
    const auto wanted = results_on_the_cpu(3, dtype);
    for (int seed = 0; seed < kSeeds; ++seed) {
      sim::set_seed(static_cast<uint64_t>(seed));
      const DeviceWorld how{.device_backend = true, .side_stream = seed % 2 == 1, .without = {at::kShort, at::kBool}};
      EXPECT_EQ(compared(how, wanted, dtype), "") << "seed " << seed;
    }
  }
}

TEST_F(DeviceTensors, ThatCannotTravelAsOthersAreRefusedAndOnlyMoved) {
  sim::set_seed(1);
  EXPECT_EQ(run_device_world(2, {.device_backend = true, .without = {at::kHalf}},
                             [](const Communicator& comm, at::Device device) {
                               const at::Tensor tensor =
                                   at::full({}, 1 + comm.rank(), at::TensorOptions(at::kHalf).device(device));
                               comm.broadcast(tensor, 1);
                               EXPECT_EQ(tensor.cpu().item<float>(), 2);
                               const auto message = testing::thrown([&] { comm.all_reduce(tensor); });
                               EXPECT_TRUE(message.starts_with("MU564")) << message;
                             }),
            "");
}

TEST_F(DeviceTensors, NeverMakeTheHostWaitForABackendOfTheDevice) {
  sim::set_seed(3);
  std::vector<at::Tensor> means(2);
  EXPECT_EQ(run_device_world(2, {.device_backend = true},
                             [&](const Communicator& comm, at::Device device) {
                               const at::Tensor own = at::ones({100}, device), all = at::empty({200}, device);
                               comm.barrier();
                               if (comm.rank() == 0) sim::reset_stats();
                               comm.barrier();
                               for (int i = 0; i < 20; ++i) {
                                 own.mul_(1 + comm.rank());
                                 auto work = comm.start_all_reduce(own, ReduceOp::mean);
                                 work.wait();
                                 comm.start_all_gather_into(all, own).wait();
                                 comm.all_reduce(all);
                                 own.add_(all.narrow(0, 0, 100)).div_(4);
                               }
                               comm.barrier();
                               if (comm.rank() == 0) {
                                 for (const auto& [cause, count] : sim::stats().host_waits)
                                   ADD_FAILURE() << count << " times the host waited for: " << cause;
                               }
                               comm.barrier();
                               means[static_cast<std::size_t>(comm.rank())] = own.cpu();
                             }),
            "");
  EXPECT_EQ(difference_in_bits(means[0], means[1]), "");
}

TEST_F(DeviceTensors, OfAWorldOfOneStayAsTheyAre) {
  sim::set_seed(2);
  const auto wanted = results_on_the_cpu(1, at::kFloat);
  EXPECT_EQ(compared({}, wanted, at::kFloat), "");
  const Communicator alone;
  const at::Tensor tensor = at::arange(5, at::TensorOptions(at::kFloat).device(sim::device(1)));
  sim::reset_stats();
  alone.all_reduce(tensor, ReduceOp::mean);
  alone.start_all_reduce(tensor).wait();
  EXPECT_EQ(sim::stats().host_waits.size(), 0U);
  EXPECT_EQ(difference_in_bits(tensor.cpu(), at::arange(5, at::kFloat)), "");
}

TEST_F(DeviceTensors, HaveBothSidesInEverySubgroup) {
  for (const bool device_backend : {false, true}) {
    sim::set_seed(5);
    EXPECT_EQ(run_device_world(4, {.device_backend = device_backend},
                               [](const Communicator& comm, at::Device device) {
                                 const int other = comm.rank() % 2;
                                 const auto odd = comm.subgroup({1, 3}), even = comm.subgroup({0, 2});
                                 const auto& mine = other ? odd : even;
                                 int64_t staged = 0;
                                 mine.observe([&](const OperationEvent& event) { staged += event.staged; });
                                 const auto again = mine.duplicate();
                                 at::Tensor sum = at::full({3}, comm.rank(), device), more = sum.clone();
                                 // Two groups at a time, and the host beside them.
                                 auto first = mine.start_all_reduce(sum);
                                 auto second = comm.start_all_reduce(more);
                                 EXPECT_EQ(mine.all_gather_bytes(std::to_string(other)).at(0), std::to_string(other));
                                 at::Tensor host = at::full({2}, comm.rank());
                                 mine.all_reduce(host);
                                 second.wait();
                                 first.wait();
                                 again.all_reduce(sum);
                                 EXPECT_EQ(sum[0].item<int64_t>(), 2 * (2 + 2 * other));
                                 EXPECT_EQ(more[2].item<int64_t>(), 6);
                                 EXPECT_EQ(host[1].item<int64_t>(), 2 + 2 * other);
                               }),
              "");
  }
}

TEST_F(DeviceTensors, MayBeDroppedBeforeTheyHaveArrived) {
  for (const bool device_backend : {false, true}) {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      sim::set_seed(seed);
      std::vector<float> last(2);
      EXPECT_EQ(run_device_world(2, {.device_backend = device_backend},
                                 [&](const Communicator& comm, at::Device device) {
                                   at::Tensor kept = at::ones({64}, device);
                                   for (int i = 0; i < 5; ++i) {
                                     at::Tensor dropped = at::full({64}, 3.F, device);
                                     (void)comm.start_all_reduce(dropped);
                                     dropped.reset();
                                     comm.all_reduce(kept, ReduceOp::mean);
                                   }
                                   last[static_cast<std::size_t>(comm.rank())] = kept.sum().item<float>();
                                 }),
                "");
      EXPECT_EQ(last, (std::vector<float>{64, 64})) << "seed " << seed;
    }
  }
}

TEST_F(DeviceTensors, OfOneOperationAreOnOneDevice) {
  const Communicator alone;
  const at::Tensor host = at::ones({4}), there = at::ones({4}, sim::device(0));
  EXPECT_EQ(testing::thrown_id([&] { (void)alone.start_all_gather_into(there, host); }), "MU056");
  EXPECT_EQ(testing::thrown_id([&] { alone.reduce_scatter(there, at::ones({4}, sim::device(1))); }), "MU056");
  EXPECT_EQ(run_device_world(2, {},
                             [](const Communicator& comm, at::Device device) {
                               EXPECT_EQ(testing::thrown_id([&] {
                                           (void)comm.all_to_all({at::ones({1}, device), at::ones({1})});
                                         }),
                                         "MU056");
                             }),
            "");
}

TEST_F(DeviceTensors, OfRanksThatDisagreeAreFoundBeforeTheyAreUsed) {
  sim::set_seed(4);
  EXPECT_EQ(run_device_world(4, {.device_backend = true},
                             [](const Communicator& comm, at::Device device) {
                               const auto odd = comm.subgroup({1, 3}), even = comm.subgroup({0, 2});
                               const auto& mine = comm.rank() % 2 ? odd : even;
                               at::Tensor tensor = at::ones({3}, device);
                               comm.all_reduce(tensor);
                               mine.all_reduce(tensor);
                               if (comm.rank() % 2) odd.broadcast(tensor);
                               if (comm.rank() == 0) comm.send(tensor, 3);  // which the others need not know
                               if (comm.rank() == 3) comm.recv(tensor, 0);
                               comm.all_reduce(tensor.zero_());
                               require_same_device_operations(comm);
                               require_same_device_operations(mine);
                               require_same_device_operations(Communicator());
                               tensor.zero_();
                               mine.all_reduce(tensor);
                               require_same_device_operations(comm);
                               EXPECT_EQ(tensor.sum().item<float>(), 0);
                             }),
            "");
}

TEST_F(DeviceTensors, OfRanksThatDisagreeAreNamedOnEveryRank) {
  sim::set_seed(4);
  const auto errors = run_device_world(3, {.device_backend = true}, [](const Communicator& comm, at::Device device) {
    const at::Tensor tensor = at::ones({3}, device);
    for (int i = 0; i < 2; ++i) comm.all_reduce(tensor);
    // The device cannot see what its operations are for.
    comm.internal(comm.rank() == 2 ? "gradients of b" : "gradients of a").all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<float>(), 27);
    comm.barrier();
    require_same_device_operations(comm);
  });
  const std::string expected =
      "MU050: rank 0 called the library's all_reduce(sum) of float32 [3] for gradients of a, rank 2 called the "
      "library's all_reduce(sum) of float32 [3] for gradients of b, operation 2 of the device's operations in group "
      "world.";
  for (const char* rank : {"rank 0: ", "rank 1: ", "rank 2: "})
    EXPECT_NE(errors.find(rank + expected), std::string::npos) << errors;
}

TEST_F(DeviceTensors, OfAGroupOfTheProgramsOwnARankMayBeAhead) {
  sim::set_seed(5);
  EXPECT_EQ(run_device_world(2, {.device_backend = true},
                             [](const Communicator& comm, at::Device device) {
                               Communicator side = comm.subgroup({0, 1});
                               const at::Tensor tensor = at::ones({3}, device), own = at::ones({5}, device);
                               std::optional<Work> work;
                               if (comm.rank() == 0) work = side.start_all_reduce(own);
                               comm.internal("gradients").all_reduce(tensor);
                               require_same_device_operations(comm);
                               if (comm.rank() == 1) work = side.start_all_reduce(own);
                               work->wait();
                               EXPECT_EQ(own.sum().item<float>(), 10);
                               if (comm.rank() == 1) side = Communicator();
                               require_same_device_operations(comm);
                             }),
            "");
  // A group that the library uses is no group of the program's own.
  const auto errors = run_device_world(2, {.device_backend = true}, [](const Communicator& comm, at::Device device) {
    const Communicator side = comm.subgroup({0, 1}), labelled = side.internal("gradients");
    const at::Tensor tensor = at::ones({3}, device);
    labelled.all_reduce(tensor);
    if (comm.rank() == 0) (void)labelled.start_all_reduce(tensor);
    require_same_device_operations(comm);
  });
  EXPECT_NE(errors.find("MU050: rank 0 called the library's all_reduce(sum) of float32 [3] for gradients, rank 1 "
                        "called nothing more, operation 1 of the device's operations in group world/0."),
            std::string::npos)
      << errors;
}

/// Also ends what a run without a point has left to the devices, which report it to whoever waits for them next.
void set_seed_after_errors(uint64_t seed) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    try {
      return sim::set_seed(seed);
    } catch (const std::exception&) {}
  }
}

/// How many of the seeds notice that a point is missing.
int noticed(const std::string& point, const DeviceWorld& how, const Results& wanted) {
  device::SyncPointFilter::leave_out(point);
  int count = 0;
  for (int seed = 1; seed <= 2 * kSeeds; ++seed) {
    set_seed_after_errors(static_cast<uint64_t>(seed));
    const auto text = compared(how, wanted, at::kFloat);
    if (point.empty() && !text.empty()) ADD_FAILURE() << "seed " << seed << ": " << text;
    count += !text.empty();
  }
  set_seed_after_errors(1);
  return count;
}

/// Synchronization points without which results are right on the simulated device, and why they are there.
const std::set<std::string> kOfSpeed{
    "staging: copies run on a stream of their own",  // beside the work of the default stream
    "staging: from the device to pinned memory",     // else the thread waits for each copy
    "staging: from pinned memory to the device",
    "collectives: the backend is called on the device of the tensors",  // NCCL takes the current device for barriers
};

TEST_F(DeviceTensors, NeedEverySyncPoint) {
  const auto wanted = results_on_the_cpu(2, at::kFloat);
  sim::set_on_race(sim::OnRace::ignore);  // which would end each run at the first wait, with ranks left behind
  const device::SyncPointFilter filter;
  for (const bool device_backend : {false, true}) {
    const DeviceWorld how{.device_backend = device_backend};
    EXPECT_EQ(noticed("", how, wanted), 0);
    const auto points = device::SyncPointFilter::passed();
    EXPECT_GE(points.size(), 5U);
    device::expect_each_needed(points, kOfSpeed, [&](const std::string& point) { return noticed(point, how, wanted); });
  }
  sim::set_on_race(sim::OnRace::raise);
}

}  // namespace
}  // namespace muster::comm
