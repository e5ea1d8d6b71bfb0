#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <thread>

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "comm/counting_transport.h"
#include "comm/group.h"
#include "comm/header.h"
#include "comm/thread_world.h"
#include "muster/testing/compare.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;

constexpr int64_t kWholeBytes = 64 * 1024;
constexpr int64_t kWindowBytes = 4 * 1024 * 1024;  // per peer, of what is on its way to be summed

/// Counts the memory of the tensors that its thread makes.
class Ledger final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    peak_ = std::max(peak_, held_ += bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

/// Runs one operation on each rank and tells what it cost there. The tensors of `make` and of `check` are not counted.
std::vector<Traffic> traffic_of(int world, const std::function<at::Tensor(int rank)>& make,
                                const std::function<void(const Communicator&, const at::Tensor&)>& operation,
                                const std::function<void(int rank, const at::Tensor&)>& check) {
  std::vector<Traffic> all(world);
  GroupIdentity identity;
  identity.timeout = std::chrono::minutes(2);
  auto hub = std::make_shared<ThreadHub>(world, identity.waiting);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      auto transport = std::make_unique<CountingTransport>(hub->join(hub, rank), all[rank]);
      Communicator comm(std::make_shared<Group>(identity, make_pairwise(std::move(transport))));
      at::Tensor tensor = make(rank);
      auto ledger = std::make_shared<Ledger>();
      {
        c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, ledger);
        operation(comm, tensor);
      }
      all[rank].held = ledger->peak();
      check(rank, tensor);
    });
  for (auto& thread : threads) thread.join();
  return all;
}

/// At the edges: nothing, less than one each, just what goes in one message, one more, and what no world divides.
std::vector<int64_t> sizes(int world, int64_t element_bytes) {
  return {0, world - 1, kWholeBytes / element_bytes, kWholeBytes / element_bytes + 1, 1'000'003 / element_bytes};
}

class Traffics : public ::testing::TestWithParam<int> {};

TEST_P(Traffics, ALargeBroadcastLeavesTheRootOnce) {
  const int world = GetParam(), root = world / 2;
  for (int64_t bytes : sizes(world, 1)) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes");
    auto values = [&](int rank) { return (at::arange(bytes, at::kLong) * 31 + rank).to(at::kByte); };
    const auto all = traffic_of(
        world, values, [&](const Communicator& comm, const at::Tensor& tensor) { comm.broadcast(tensor, root); },
        [&](int rank, const at::Tensor& tensor) {
          EXPECT_EQ(difference_in_bits(tensor, values(root)), "") << "rank " << rank;
        });
    int64_t sent = 0;
    for (int rank = 0; rank < world; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      if (bytes <= kWholeBytes) EXPECT_EQ(all[rank].sent, rank == root ? bytes * (world - 1) : 0);
      else EXPECT_LE(all[rank].sent, bytes);
      EXPECT_EQ(all[rank].received, rank == root ? 0 : bytes);
      EXPECT_EQ(all[rank].held, 0);
      sent += all[rank].sent;
    }
    EXPECT_EQ(sent, bytes * (world - 1)) << "nothing is sent twice to one rank";
  }
}

TEST_P(Traffics, ALargeReduceSumsPiecesWhereTheyAreOwned) {
  const int world = GetParam(), root = world - 1;
  auto counts = sizes(world, 4);
  if (world == 2) counts.push_back(3'000'001);  // a piece has more chunks than wait at a time
  for (int64_t elements : counts) {
    const int64_t bytes = elements * 4, padding = world * 64 * 4;
    SCOPED_TRACE(std::to_string(elements) + " elements");
    auto values = [&](int rank) {
      const auto number = static_cast<float>(rank);
      return at::arange(elements, at::kFloat).mul_(0.37f + number).sin_().mul_(std::pow(1.7f, number));
    };
    auto check = [&](int rank, const at::Tensor& tensor) {
      at::Tensor expected = values(rank == root ? 0 : rank);
      for (int other = 1; rank == root && other < world; ++other) expected.add_(values(other));
      EXPECT_EQ(difference_in_bits(tensor, expected), "") << "rank " << rank;
    };
    const auto all = traffic_of(
        world, values, [&](const Communicator& comm, const at::Tensor& tensor) { comm.reduce(tensor, root); }, check);
    for (int rank = 0; rank < world; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      EXPECT_LE(all[rank].sent, bytes);
      if (bytes <= kWholeBytes) continue;
      EXPECT_LE(all[rank].received, rank == root ? 2 * bytes : bytes + padding);
      EXPECT_LE(all[rank].held, std::min(bytes + padding, world * kWindowBytes));
    }
  }
}

TEST_P(Traffics, WhatSumsHoldIsNoMoreThanTheTensor) {
  const int world = GetParam();
  const int64_t elements = 20'000 * world;
  auto ones = [&](int) { return at::ones({elements}); };
  auto check = [](int, const at::Tensor&) {};
  const auto reduced = traffic_of(
      world, ones, [](const Communicator& comm, const at::Tensor& tensor) { comm.all_reduce(tensor); }, check);
  const auto scattered = traffic_of(
      world, ones,
      [&](const Communicator& comm, const at::Tensor& tensor) {
        comm.reduce_scatter(tensor.narrow(0, comm.rank() * elements / world, elements / world), tensor);
      },
      check);
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_LE(reduced[rank].held, elements * 4 + world * 64 * 4) << "all_reduce, rank " << rank;
    EXPECT_LE(scattered[rank].held, elements * 4 + world * 64 * 4) << "reduce_scatter, rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Traffics, ::testing::Values(2, 3, 4, 8, 16));

}  // namespace
}  // namespace muster::comm
