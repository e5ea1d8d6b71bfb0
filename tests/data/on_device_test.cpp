// Loaders for the simulated accelerator.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/thread_world.h"
#include "data/pass.h"
#include "device/order.h"
#include "device/sync_point_filter.h"
#include "muster/data/loader.h"
#include "muster/data/sample_split.h"
#include "muster/sim/sim.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::data {
namespace {

constexpr int64_t kSamples = 37, kWidth = 300;
constexpr int kSeeds = 10;

at::Tensor row(int64_t i) { return torch::sin(torch::arange(kWidth) * (0.01 * static_cast<double>(i + 1))); }

/// Samples that a loader makes into batches, in pinned memory that it writes again.
struct Rows {
  std::tuple<at::Tensor, int64_t> get(int64_t i) const { return {row(i), i}; }
  int64_t size() const { return kSamples; }
};

/// Batches of the dataset's own, in memory that is not pinned.
struct WholeBatches {
  using Batch = std::map<std::string, std::vector<at::Tensor>>;
  Batch get_batch(c10::ArrayRef<size_t> indices) const {
    std::vector<at::Tensor> rows;
    for (const auto i : indices) rows.push_back(row(static_cast<int64_t>(i)));
    return {{"x", {torch::stack(rows)}}, {"more", {torch::stack(rows) * 2, at::Tensor()}}};
  }
  int64_t size() const { return kSamples; }
};

/// Batches that are made on the device whose index is current.
struct MadeThere {
  at::DeviceType type = at::kCPU;
  at::Tensor get_batch(c10::ArrayRef<size_t> indices) const {
    auto all = torch::zeros({static_cast<int64_t>(indices.size()), kWidth}, type);
    for (size_t i = 0; i < indices.size(); ++i) all[static_cast<int64_t>(i)] += static_cast<double>(indices[i]);
    return all;
  }
  int64_t size() const { return kSamples; }
};

/// Batches in one piece of pinned memory, which is written for each.
struct OwnPinnedMemory {
  at::Tensor memory = torch::empty({4, kWidth}, torch::TensorOptions().pinned_memory(true));
  at::Tensor get_batch(c10::ArrayRef<size_t> indices) const {
    const auto rows = memory.narrow(0, 0, static_cast<int64_t>(indices.size()));
    for (size_t i = 0; i < indices.size(); ++i)
      rows[static_cast<int64_t>(i)].copy_(row(static_cast<int64_t>(indices[i])));
    return rows;
  }
  int64_t size() const { return kSamples; }
};

/// How a program uses a loader.
struct Use {
  int workers = 0;
  bool side_stream = true;
  int keeps = 0;  ///< so many batches are used again later
  SampleSplit split = {};
};

/// Work on batches that are dropped while it is queued. Rows are of rank 1 or 2.
struct Work {
  at::Tensor sum;
  std::vector<at::Tensor> kept;

  explicit Work(at::Device device) : sum(torch::zeros({kWidth}, device)) {}
  void add(const at::Tensor& batch) {
    if (!batch.defined()) return;
    EXPECT_EQ(batch.device(), sum.device());
    const auto floats = batch.to(torch::kFloat);
    sum.mul_(0.9).add_(floats.dim() == 2 ? torch::tanh(floats).sum(0) : floats.sum().expand({kWidth}));
  }
  void operator()(const std::tuple<at::Tensor, at::Tensor>& batch) { add(std::get<0>(batch)), add(std::get<1>(batch)); }
  void operator()(const WholeBatches::Batch& batch) {
    for (const auto& [name, list] : batch)
      for (const auto& one : list) add(one);
  }
  void operator()(const at::Tensor& batch) { add(batch); }
  void keep(const std::tuple<at::Tensor, at::Tensor>& batch) { kept.push_back(std::get<0>(batch)); }
  void keep(const WholeBatches::Batch& batch) { kept.push_back(batch.at("more").front()); }
  void keep(const at::Tensor& batch) { kept.push_back(batch); }
};

/// What two passes give.
template <class Data>
at::Tensor result_of(const Data& data, at::Device device, const Use& use) {
  const c10::OptionalDeviceGuard on_device(device);
  c10::OptionalStreamGuard on_stream;
  if (use.side_stream && !device.is_cpu())
    on_stream.reset_stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false));
  auto split = use.split;
  split.device = device;
  const DataLoaderOptions options{.batch_size = 4, .seed = 5, .shuffle = true, .workers = use.workers};
  const auto loader = DataLoader(data, options).distributed(split);
  Work work(device);
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& batch : loader) {
      work(batch);
      if (static_cast<int>(work.kept.size()) < use.keeps) work.keep(batch);
    }
    for (const auto& batch : work.kept) work.add(batch);
  }
  return work.sum.cpu();
}

template <class Data>
void expect_bits_of_cpu(const Data& data, const Use& use) {
  const auto expected = result_of(data, at::kCPU, use);
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    EXPECT_EQ(muster::testing::difference_in_bits(result_of(data, sim::device(seed % 2), use), expected), "")
        << "seed " << seed << ", workers " << use.workers;
  }
}

class BatchesOnDevice : public ::testing::Test {
 protected:
  BatchesOnDevice() {
    sim::install();
    at::set_num_threads(1);
    sim::set_seed(1);
  }
};

TEST_F(BatchesOnDevice, HaveTheBitsOfTheCpu) {
  for (const int workers : {0, 2})
    for (const bool side_stream : {false, true}) {
      expect_bits_of_cpu(Rows(), {.workers = workers, .side_stream = side_stream});
      expect_bits_of_cpu(WholeBatches(), {.workers = workers, .side_stream = side_stream});
    }
}

TEST_F(BatchesOnDevice, MayBeKept) {
  expect_bits_of_cpu(Rows(), {.workers = 2, .keeps = 3});
  expect_bits_of_cpu(WholeBatches(), {.keeps = 3});
}

TEST_F(BatchesOnDevice, MayBeMadeInOnePieceOfPinnedMemory) {
  for (const bool side_stream : {false, true}) expect_bits_of_cpu(OwnPinnedMemory(), {.side_stream = side_stream});
  sim::reset_stats();
  (void)result_of(OwnPinnedMemory(), sim::device(0), {});
  EXPECT_GT(sim::stats().host_waits["event"], 0);
  std::vector<at::Tensor> ready;
  for (int i = 0; i < 5; ++i) ready.push_back(row(i).pin_memory());
  Work work(sim::device(0));
  sim::reset_stats();
  for (const auto& batch : DataLoader(Batches(ready)).distributed({.device = sim::device(0)})) work(batch);
  EXPECT_EQ(sim::stats().all_host_waits(), 0) << "nobody writes ready-made batches again";
}

TEST_F(BatchesOnDevice, MayBeMadeThere) {
  const auto expected = result_of(MadeThere(), at::kCPU, {});
  for (const int workers : {0, 2})
    for (int seed = 0; seed < kSeeds; ++seed) {
      sim::set_seed(static_cast<uint64_t>(seed));
      const auto result = result_of(MadeThere{at::kPrivateUse1}, sim::device(1), {.workers = workers});
      EXPECT_EQ(muster::testing::difference_in_bits(result, expected), "") << "seed " << seed;
    }
}

TEST_F(BatchesOnDevice, NeverMakeTheHostWait) {
  for (const int workers : {0, 2}) {
    sim::set_seed(3);
    Work work(sim::device(0));
    const DataLoaderOptions options{.batch_size = 1, .workers = workers};
    const auto loader = DataLoader(Rows(), options).distributed({.device = sim::device(0)});
    sim::reset_stats();
    for (int pass = 0; pass < 2; ++pass)
      for (const auto& batch : loader) work(batch);
    for (const auto& [cause, count] : sim::stats().host_waits)
      ADD_FAILURE() << count << " times the host waited for: " << cause;
  }
}

TEST_F(BatchesOnDevice, AreWrittenInTheSamePinnedMemoryAgain) {
  sim::set_seed(0);  // copies are over at once
  const auto there = sim::device(0);
  DeviceMover mover(there, device::stream_from_pool(there), /*pinned=*/true, /*non_blocking=*/true);
  using List = std::vector<at::Tensor>;
  const auto pinned = torch::TensorOptions().pinned_memory(true);
  const auto moved_and_kept = [&](List list, const std::function<void(List&)>& user) {
    auto box = std::make_unique<BatchBoxOf<List>>();
    box->batch = std::move(list);
    auto copy = mover.start(*box);
    mover.finish(*box, copy);
    user(*box->batch);
    mover.keep(std::move(box), std::move(copy));
    auto taken = mover.take();
    return taken ? *static_cast<BatchBoxOf<List>&>(*taken).batch : List();
  };
  const auto seen = torch::ones({4}, pinned);
  List list{torch::ones({9}, pinned), seen, at::Tensor(), torch::ones({3})};
  const auto* place = list.front().const_data_ptr();
  const auto again = moved_and_kept(std::move(list), [&](List& batch) {
    for (const size_t i : {0U, 1U, 3U}) EXPECT_EQ(batch[i].device(), there);
  });
  ASSERT_EQ(again.size(), 4U);
  EXPECT_EQ(again[0].const_data_ptr(), place);
  EXPECT_FALSE(again[1].defined()) << "somebody else sees it";
  EXPECT_TRUE(moved_and_kept({torch::ones({9}, pinned)}, [](List& batch) { batch.clear(); }).empty());
}

TEST_F(BatchesOnDevice, MayBeLeftMidway) {
  const auto full = result_of(Rows(), at::kCPU, {});
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    Work work(sim::device(0));
    auto loader = DataLoader(Rows(), {.batch_size = 4, .seed = 5, .shuffle = true, .workers = seed % 3})
                      .distributed({.device = sim::device(0)});
    at::Tensor last;
    for (const auto& batch : loader) {
      work(batch);
      last = std::get<0>(batch);
      if (loader.num_yielded() == 3) break;
    }
    work.add(last);
    at::Tensor again = torch::zeros({4, kWidth}, sim::device(0)) + 1;  // memory that the pass left
    EXPECT_EQ(again.sum().item<float>(), 4 * kWidth);
    EXPECT_FALSE(at::isnan(work.sum.cpu()).any().item<bool>()) << "seed " << seed;
    EXPECT_EQ(muster::testing::difference_in_bits(result_of(Rows(), sim::device(0), {.workers = 2}), full), "");
  }
}

/// Fails at one sample, once.
struct Failing {
  std::tuple<at::Tensor, int64_t> get(int64_t i) const {
    if (i == 17) throw std::runtime_error("a bad sample");
    return {row(i), i};
  }
  int64_t size() const { return kSamples; }
};

TEST_F(BatchesOnDevice, BeforeASampleThatFailsAreWhole) {
  for (const int workers : {0, 2}) {
    std::vector<at::Tensor> sums;
    for (int seed = 0; seed <= kSeeds; ++seed) {
      sim::set_seed(static_cast<uint64_t>(seed));
      Work work(seed == kSeeds ? at::Device(at::kCPU) : sim::device(0));
      const auto loader =
          DataLoader(Failing(), {.batch_size = 4, .workers = workers}).distributed({.device = work.sum.device()});
      const auto message = muster::testing::thrown([&] {
        for (const auto& batch : loader) work(batch);
      });
      EXPECT_NE(message.find("a bad sample"), std::string::npos) << message;
      sums.push_back(work.sum.cpu());
      EXPECT_EQ(muster::testing::difference_in_bits(sums.front(), sums.back()), "") << "seed " << seed;
    }
  }
}

TEST_F(BatchesOnDevice, ThatRankZeroReadsHaveTheBitsOfTheCpu) {
  const auto all_ranks = [](const std::vector<at::Device>& devices) {
    std::vector<at::Tensor> results(devices.size());
    const auto errors =
        comm::run_thread_world(static_cast<int>(devices.size()), {}, [&](const comm::Communicator& group) {
          const auto rank = static_cast<size_t>(group.rank());
          results[rank] = result_of(Rows(), devices[rank],
                                    {.split = {.dispatch_batches = true,
                                               .group = std::make_shared<const comm::Communicator>(group),
                                               .rank = group.rank(),
                                               .world_size = group.size()}});
        });
    for (const auto& error : errors) EXPECT_FALSE(error);
    return results;
  };
  const auto expected = all_ranks({at::kCPU, at::kCPU});
  for (int seed = 0; seed < kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    const auto results = all_ranks({sim::device(0), sim::device(1)});
    for (size_t rank = 0; rank < results.size(); ++rank)
      EXPECT_EQ(muster::testing::difference_in_bits(results[rank], expected[rank]), "") << "seed " << seed;
  }
}

/// What fails without a point.
int noticed(const std::string& point, at::DeviceType there) {
  device::SyncPointFilter::leave_out(point);
  const auto expected = result_of(Rows(), at::kCPU, {}), expected_of_own = result_of(OwnPinnedMemory(), at::kCPU, {});
  int count = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    for (const int workers : {0, 2})
      count += !muster::testing::difference_in_bits(result_of(Rows(), sim::device(1), {.workers = workers}), expected)
                    .empty();
    try {
      const auto result = result_of(OwnPinnedMemory(), sim::device(1), {});
      count += !muster::testing::difference_in_bits(result, expected_of_own).empty();
      const auto sample = [there](int64_t) {
        const auto made = torch::ones({2}, there);
        if (made.device() != sim::device(1)) throw std::runtime_error("made on another device");
        return made;
      };
      const auto loader = DataLoader(sample, 9, {.workers = 1}).distributed({.device = sim::device(1)});
      const c10::DeviceGuard on_device(sim::device(1));
      const c10::StreamGuard on_stream(
          c10::impl::VirtualGuardImpl(there).getStreamFromGlobalPool(sim::device(1), false));
      at::Tensor sum = torch::zeros({1, 2}, there);
      for (const auto& batch : loader) sum += batch;
      count += sum.sum().item<float>() != 18;
    } catch (const std::exception&) {
      ++count;
    }
  }
  return count + static_cast<int>(sim::take_races().size());
}

/// Synchronization points without which results are right on the simulated device, and why they are there.
const std::set<std::string> kOfSpeed{
    "batches: copies run on a stream of their own",  // beside the work of the current stream
    "batches: from pinned memory to the device",     // else the host waits for each copy
};

TEST_F(BatchesOnDevice, NeedEverySyncPoint) {
  sim::set_on_race(sim::OnRace::collect);
  const device::SyncPointFilter filter;
  EXPECT_EQ(noticed("", at::kPrivateUse1), 0);
  const auto points = device::SyncPointFilter::passed();
  EXPECT_EQ(points.size(), 8U);
  device::expect_each_needed(points, kOfSpeed,
                             [](const std::string& point) { return noticed(point, at::kPrivateUse1); });
  sim::set_on_race(sim::OnRace::raise);
}

}  // namespace
}  // namespace muster::data
