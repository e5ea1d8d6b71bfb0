#include "comm/group.h"

#include <atomic>
#include <mutex>
#include <optional>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/piggyback.h"
#include "comm/samples.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::run_threads;
using testing::thrown;

TEST(Group, StartedOperationsRunInOrderAndSynchronousOnesBehindThem) {
  for (uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    run_threads(3, seed, [](const Communicator& comm) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int64_t i = 0; i < 20; ++i) {
        tensors.push_back(at::full({100 + i * 3000}, comm.rank() + i, at::kFloat));
        works.push_back(comm.start_all_reduce(tensors.back()));
      }
      at::Tensor last = at::ones({3});
      comm.all_reduce(last);
      EXPECT_EQ(last[0].item<float>(), 3.f);
      for (auto& work : works)
        EXPECT_TRUE(work.is_completed()) << "what was started before a finished operation is finished";
      for (int64_t i = 0; i < 20; ++i) {
        works[i].wait();
        EXPECT_EQ(tensors[i][99].item<float>(), static_cast<float>(3 + 3 * i));
      }
    });
  }
}

TEST(Group, WhatARankHasStartedEndsForTheOthersThoughItLetsGoOfTheGroup) {
  for (uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    run_threads(2, seed, [](const Communicator& comm) {
      std::optional<Communicator> part = comm.subgroup({0, 1});
      at::Tensor tensor = at::full({100'000}, comm.rank() + 1, at::kFloat);
      Work work = part->start_all_reduce(tensor);
      if (comm.rank() == 0) part.reset();
      else work.wait();
      EXPECT_EQ(tensor[99].item<float>(), 3.f);
    });
  }
}

TEST(Group, TwoGroupsAtOnce) {
  for (uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
    run_threads(4, seed, [](const Communicator& comm) {
      Communicator even = comm.subgroup({0, 2});
      Communicator odd = comm.subgroup({1, 3});
      const Communicator& mine = comm.rank() % 2 ? odd : even;
      EXPECT_EQ(mine.size(), 2);
      EXPECT_EQ((comm.rank() % 2 ? even : odd).size(), 1) << "not a member";
      EXPECT_EQ(mine.rank(), comm.rank() / 2);
      EXPECT_EQ(mine.name(), comm.rank() % 2 ? "world/1" : "world/0");
      at::Tensor a = at::full({40'000}, comm.rank(), at::kFloat), b = at::ones({40'000});
      // The two groups' operations overlap, and different ranks wait for them in different orders.
      Work in_part = mine.start_all_reduce(a);
      Work in_world = comm.start_all_reduce(b);
      if (comm.rank() < 2) in_part.wait(), in_world.wait();
      else in_world.wait(), in_part.wait();
      EXPECT_EQ(a[7].item<float>(), comm.rank() % 2 ? 4.f : 2.f);
      EXPECT_EQ(b[7].item<float>(), 4.f);
    });
  }
}

TEST(Group, OperationsOfTwoGroupsCrossWithoutBlocking) {
  run_threads(2, 6, [](const Communicator& comm) {
    Communicator other = comm.subgroup({0, 1});
    at::Tensor a = at::ones({3}), b = at::ones({3});
    Work first = comm.rank() == 0 ? comm.start_all_reduce(a) : other.start_all_reduce(b);
    if (comm.rank() == 0) other.all_reduce(b);
    else comm.all_reduce(a);
    first.wait();
    EXPECT_EQ((a + b).sum().item<float>(), 12.f);
  });
}

TEST(Group, ObserversSeeEveryOperation) {
  run_threads(2, 9, [](const Communicator& comm) {
    std::vector<std::string> seen;
    std::mutex mutex;
    comm.observe([&](const OperationEvent& event) {
      std::lock_guard lock(mutex);
      EXPECT_LE(event.start, event.end);
      EXPECT_EQ(event.sequence, static_cast<int64_t>(seen.size()));
      seen.push_back(std::string(event.group) + " " + std::string(event.operation) + " " + std::to_string(event.bytes) +
                     " " + c10::toString(event.dtype));
    });
    comm.all_reduce(at::ones({3}, at::kDouble));
    comm.start_broadcast(at::ones({5})).wait();
    comm.barrier();
    comm.all_gather_bytes("four");
    std::vector<std::string> expected{"world all_reduce 24 Double", "world broadcast 20 Float", "world barrier 0 Byte",
                                      "world all_gather_bytes 4 Byte"};
    EXPECT_EQ(seen, expected);
  });
}

TEST(Group, ATimeOutNamesOperationAndPeerAndEndsTheGroupForAll) {
  std::vector<std::string> messages(3);
  run_thread_world(3, {.seed = 2, .timeout = std::chrono::seconds(30)}, [&](const Communicator& comm) {
    comm.barrier();
    Communicator rest = comm.subgroup({0, 1});
    if (comm.rank() == 2) {
      // Waits in another group, which nobody joins, so that nobody can go on.
      messages[2] = thrown([&] { comm.recv(at::ones({1}), 0); });
      return;
    }
    messages[comm.rank()] = thrown([&] { comm.all_reduce(at::ones({4})); });
  });
  EXPECT_TRUE(messages[0].starts_with("MU05")) << messages[0];
  EXPECT_TRUE(messages[2].starts_with("MU05")) << messages[2];
  std::string timed_out;
  run_thread_world(2, {.seed = 2, .timeout = std::chrono::seconds(30)}, [&](const Communicator& comm) {
    Communicator a = comm.subgroup({0, 1}), b = comm.subgroup({0, 1});
    std::string what = thrown([&] { (comm.rank() ? a : b).all_reduce(at::ones({4})); });
    if (what.find("waited") != std::string::npos) timed_out = what;
  });
  EXPECT_TRUE(timed_out.starts_with("MU051: rank ")) << timed_out;
  EXPECT_NE(timed_out.find("all_reduce(sum) of float32 [4], operation 0 of group world/"), std::string::npos)
      << timed_out;
}

TEST(Group, ErrorsOfASubgroupSayWhichRanksOfTheJobItHas) {
  const std::string of_group = "group world/0 (its ranks, in order, are 1, 3 of the job)";
  std::string mismatch, lost, failed;
  run_thread_world(4, {.seed = 1}, [&](const Communicator& comm) {
    const Communicator part = comm.subgroup({1, 3});
    if (comm.rank() % 2 == 0) return;
    const auto what = thrown([&] { part.all_reduce(at::ones({part.rank() + 2})); });
    if (what.starts_with("MU050")) mismatch = what;
  });
  EXPECT_NE(mismatch.find("rank 0 called all_reduce(sum) of float32 [2], rank 1 called all_reduce(sum) of float32 [3]"),
            std::string::npos)
      << mismatch;
  EXPECT_NE(mismatch.find(of_group), std::string::npos) << mismatch;
  run_thread_world(4, {.seed = 2}, [&](const Communicator& comm) {
    const Communicator part = comm.subgroup({1, 3});
    if (comm.rank() == 1) failed = thrown([&] { part.barrier(); });
  });
  EXPECT_TRUE(failed.starts_with("MU05") && failed.find("rank 1") != std::string::npos) << failed;
  EXPECT_NE(failed.find(of_group), std::string::npos) << failed;
  // The first ranks of the job have the same numbers in the group.
  run_thread_world(3, {.seed = 3, .timeout = std::chrono::seconds(30)}, [&](const Communicator& comm) {
    const Communicator part = comm.subgroup({0, 1});
    if (comm.rank() == 1) lost = thrown([&] { part.barrier(); });
  });
  EXPECT_NE(lost.find("of group world/0. "), std::string::npos) << lost;
}

TEST(Group, AbortEndsWaitsOnAllRanksWithTheCause) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    std::vector<std::string> messages(3);
    run_thread_world(3, {.seed = seed}, [&](const Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 1) comm.abort("the disk is full");
      messages[comm.rank()] = thrown([&] {
        for (int turn = 0; turn < 3; ++turn) comm.all_reduce(at::ones({50'000}));
      });
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(messages[rank].starts_with("MU053"))
          << "seed " << seed << ", rank " << rank << ": " << messages[rank];
      EXPECT_NE(messages[rank].find("the disk is full"), std::string::npos) << messages[rank];
    }
  }
}

TEST(Group, DestructionWithOperationsUnderWayNeitherThrowsNorHangs) {
  for (uint64_t seed : {0, 3, 8}) {
    std::string at_peer;
    run_thread_world(2, {.seed = seed}, [&](const Communicator& comm) {
      if (comm.rank() == 0) {
        auto part = std::make_unique<Communicator>(comm.subgroup({0, 1}));
        Work forgotten = part->start_all_reduce(at::ones({100'000}));
        part.reset();
        EXPECT_NE(thrown([&] { forgotten.wait(); }), "no error");
      } else {
        Communicator part = comm.subgroup({0, 1});
        comm.recv(at::ones({1}), 0);
        at_peer = thrown([&] { part.all_reduce(at::ones({100'000})); });
        return;
      }
      comm.send(at::ones({1}), 1);
    });
    EXPECT_TRUE(at_peer.starts_with("MU05")) << at_peer;
  }
}

TEST(Group, FailuresOfStartedOperationsComeOutOfWait) {
  run_threads(2, 1, [](const Communicator& comm) {
    Communicator part = comm.subgroup({0, 1});
    Work work = part.start_all_reduce(at::ones({comm.rank() + 1}));
    Work behind = part.start_all_reduce(at::ones({4}));
    EXPECT_TRUE(thrown([&] { work.wait(); }).starts_with("MU050"));
    EXPECT_TRUE(thrown([&] { behind.wait(); }).starts_with("MU050"));
  });
}

TEST(Group, WordsTravelWithOperationsAndAreNotCompared) {
  testing::run_threads(3, 9, [](const Communicator& comm) {
    const auto rank = static_cast<uint64_t>(comm.rank());
    comm.barrier();
    EXPECT_EQ(attached_piggybacks(comm), (std::vector<uint64_t>{0, 0, 0}));
    if (rank != 1) attach_piggyback(comm, 10 + rank);
    at::Tensor large = at::ones({50'000});
    auto work = comm.start_all_reduce(large);
    // Too late for what was started before.
    attach_piggyback(comm, 20 + rank);
    work.wait();
    EXPECT_EQ(attached_piggybacks(comm),
              rank == 1 ? (std::vector<uint64_t>{0, 0, 0}) : (std::vector<uint64_t>{10, 0, 12}));
    comm.internal("anything").barrier();
    EXPECT_EQ(attached_piggybacks(comm), (std::vector<uint64_t>{20, 21, 22}));
    attach_piggyback(comm, 0);
    comm.barrier();
    EXPECT_EQ(attached_piggybacks(comm), (std::vector<uint64_t>{20, 21, 22}));
  });
}

}  // namespace
}  // namespace muster::comm
