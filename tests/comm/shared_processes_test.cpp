#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/every_operation.h"
#include "comm/forked_ranks.h"
#include "comm/refused_memory.h"
#include "comm/shared_memory/areas.h"
#include "comm/shared_memory/segment.h"
#include "comm/shared_tensor.h"
#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

const GroupOptions kShm{.backend = "shm"};

/// Sockets at which this rank can still be reached by others of its host.
std::size_t own_sockets() {
  const std::string name = "link-" + std::to_string(::getpid()) + "-";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(private_folder()))
    count += entry.path().filename().string().starts_with(name);
  return count;
}

/// How this process maps that memory, as "r--s".
std::string permissions_of(const void* memory) {
  std::ifstream maps("/proc/self/maps");
  std::ostringstream start;
  start << std::hex << reinterpret_cast<uintptr_t>(memory) << '-';
  for (std::string range, permissions, rest; maps >> range >> permissions && std::getline(maps, rest);)
    if (range.starts_with(start.str())) return permissions;
  return "not mapped";
}

/// Whether that process has got a SIGSTOP.
bool is_stopped(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  return line.find(") T ") != std::string::npos;
}

/// The memory of the segments that this process keeps open.
std::size_t segment_bytes() {
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    struct stat status {};
    if (!std::filesystem::read_symlink(entry, ignored).string().starts_with("/memfd:muster ")) continue;
    if (::stat(entry.path().c_str(), &status) == 0) bytes += static_cast<std::size_t>(status.st_blocks) * 512;
  }
  return bytes;
}

class SharedProcesses : public ::testing::TestWithParam<int> {};

TEST_P(SharedProcesses, GiveTheBitsOfGlooAndLeaveNoSocket) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const int world = GetParam();
  const auto body = [&](const ClusterEnvironment& cluster) {
    Communicator shared = connect(cluster, kShm), gloo = connect(cluster, {.backend = "gloo"});
    EXPECT_EQ(shared.backend(), "shm");
    EXPECT_EQ(own_sockets(), 0u);
    for (int64_t elements : {0, 1, 13, 70'001, 300'000})
      for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
        if (elements > 100'000 && dtype != at::kFloat) continue;
        const auto ours = results_of(shared, elements, dtype), sent = results_of(gloo, elements, dtype);
        ASSERT_EQ(ours.size(), sent.size());
        for (std::size_t i = 0; i < sent.size(); ++i)
          ASSERT_EQ(difference_in_bits(ours[i], sent[i]), "") << i << " of " << elements << c10::toString(dtype);
      }
    Communicator part = shared.subgroup({0, world - 1}), other = shared.duplicate();
    at::Tensor ones = at::ones({50'000});
    Work started = other.start_all_reduce(ones);
    if (part.size() == 2) {
      EXPECT_EQ(part.all_gather(at::full({3}, cluster.rank))[1][2].item<int>(), world - 1);
    }
    started.wait();
    EXPECT_EQ(ones[49'999].item<float>(), static_cast<float>(world));
  };
  EXPECT_EQ(run_forked(world, body), std::vector<int>(world, 0));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedProcesses, ::testing::Values(2, 3, 4));

TEST(SharedMemory, NoWakeIsLostHoweverOftenRanksSleep) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto body = [](const Communicator& comm) {
    // The group's own thread sleeps as soon as it waits, where it has no core to itself.
    for (int turn = 0; turn < 1500; ++turn) {
      at::Tensor small = at::ones({3}), large = at::full({turn % 5 ? 9 : 40'000}, comm.rank());
      Work first = comm.start_all_reduce(small), second = comm.start_broadcast(large, turn % 3);
      first.wait();
      second.wait();
      ASSERT_EQ(small[2].item<float>(), 3.f);
      ASSERT_EQ(large[8].item<int64_t>(), turn % 3);
    }
  };
  expect_forked(3, body, {.backend = "shm", .timeout = std::chrono::seconds(20)});
}

TEST(SharedMemory, AKilledProcessIsNoticedByAllAtOnce) {
  for (int turn_of_death : {0, 3, 10}) {
    const auto statuses = run_forked(3, [&](const ClusterEnvironment& cluster) {
      const Communicator comm = connect(cluster, kShm);
      const std::string message = thrown([&] {
        for (int turn = 0; turn < 100; ++turn) {
          if (comm.rank() == 1 && turn == turn_of_death) ::raise(SIGKILL);
          comm.all_reduce(at::ones({turn % 2 ? 5 : 300'000}));
        }
      });
      EXPECT_TRUE(message.starts_with("MU052") && message.find("lost rank 1") != std::string::npos) << message;
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, SIGKILL, 0}));
  }
}

TEST(SharedMemory, AStoppedProcessIsATimeOutAndALateWriterDoesNoHarm) {
  for (const bool in_the_group : {false, true}) {
    const auto body = [&](const Communicator& comm) {
      const auto pid = static_cast<pid_t>(comm.all_gather(at::full({1}, ::getpid(), at::kLong))[1].item<int64_t>());
      const at::Tensor late =
          in_the_group ? shared_zeros(comm, 100'000, at::kFloat, PeerAccess::write).fill_(1) : at::ones({100'000});
      comm.barrier();
      if (comm.rank() == 1) ::raise(SIGSTOP);
      while (comm.rank() == 0 && !is_stopped(pid)) ::sched_yield();
      const std::string message = thrown([&] { comm.all_reduce(late); });
      const at::Tensor after = late.clone();
      if (comm.rank() == 0) {
        EXPECT_TRUE(message.starts_with("MU051: rank 0 waited")) << message;
        EXPECT_NE(message.find("for rank 1 in all_reduce(sum) of float32 [100000]"), std::string::npos) << message;
        ::kill(pid, SIGCONT);
      } else {
        EXPECT_TRUE(message.starts_with("MU051: rank 0 ended group world")) << message;
      }
      EXPECT_EQ(difference_in_bits(late, after), "");
    };
    expect_forked(2, body, {.backend = "shm", .timeout = std::chrono::milliseconds(500)});
  }
}

TEST(SharedMemory, AnAbortReachesAProcessThatSleeps) {
  const auto body = [](const Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) comm.abort("enough");
    const std::string message = thrown([&] { comm.all_reduce(at::ones({100'000})); });
    EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
  };
  expect_forked(2, body, kShm);
}

TEST(SharedMemory, RanksThatCannotShareAgreeOnGlooAndWhy) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  const auto body = [](const ClusterEnvironment& cluster) {
    ::setenv("MUSTER_HOST", cluster.rank ? "left" : "right", 1);
    Communicator comm = connect(cluster, {.backend = "auto"});
    EXPECT_EQ(comm.backend(), "gloo");
    EXPECT_EQ(comm.backend_reason(), "no shared memory: no two ranks are on one host");
    comm.barrier();
    EXPECT_EQ(thrown_id([&] { connect(cluster, kShm); }), "MU400");
    ::setenv("MUSTER_HOST", "here", 1);
    EXPECT_EQ(connect(cluster, {.backend = "auto"}).backend(), "shm");
    // One rank without descriptors: all take gloo.
    if (cluster.rank == 1) ::setenv("TMPDIR", "/nowhere", 1);
    comm = connect(cluster, {.backend = "auto"});
    EXPECT_EQ(comm.backend(), "gloo");
    EXPECT_TRUE(comm.backend_reason().starts_with("no shared memory: rank 1: MU069")) << comm.backend_reason();
  };
  EXPECT_EQ(run_forked(2, body), (std::vector<int>{0, 0}));
}

/// As many descriptors as this process has open, and no more.
rlimit no_more_descriptors(const rlimit& before) {
  const int next = ::dup(0);
  ::close(next);
  return {static_cast<rlim_t>(next), before.rlim_max};
}

TEST(SharedMemory, WhatOneRankCannotMakeIsRefusedOnAll) {
  const auto body = [](const Communicator& comm) {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    for (int unable : {0, 1, 2}) {
      comm.barrier();
      const rlimit none = no_more_descriptors(before);
      if (comm.rank() == unable) ::setrlimit(RLIMIT_NOFILE, &none);
      EXPECT_EQ(thrown_id([&] { (void)comm.duplicate(); }), "MU401");
      const at::Tensor ordinary = shared_zeros(comm, 9'000, at::kFloat);
      EXPECT_TRUE(ordinary.storage().resizable());
      ::setrlimit(RLIMIT_NOFILE, &before);
      const at::Tensor living = shared_zeros(comm, 9'000, at::kFloat);
      EXPECT_FALSE(living.storage().resizable());
      for (const auto& tensor : {ordinary, living}) {
        comm.all_reduce(tensor.fill_(1));
        EXPECT_EQ(tensor.eq(3).sum().item<int64_t>(), 9'000);
      }
      EXPECT_EQ(comm.duplicate().size(), 3);
    }
  };
  expect_forked(3, body, kShm);
}

TEST(SharedMemory, StagingAndBlocksGetMemoryWhenTheyAreFirstUsed) {
  const auto body = [](const Communicator& comm) {
    const AreaLayout layout(comm.size());
    comm.all_reduce(at::ones({1024}));
    comm.barrier();
    EXPECT_EQ(segment_bytes(), layout.bytes_at_first());
    comm.all_reduce(at::ones({1025}));
    EXPECT_EQ(segment_bytes(), layout.bytes_at_first() + 2 * AreaLayout::kStagingBytes);
    comm.all_gatherv(at::ones({5000}));
    EXPECT_EQ(segment_bytes(), layout.bytes());
  };
  expect_forked(3, body, kShm);
}

TEST(SharedMemory, NoMemoryForStagingIsAnErrorOnAllRanks) {
  if (!may_refuse_memory()) GTEST_SKIP() << "this machine allows no seccomp filter";
  for (const bool of_blocks : {false, true}) {
    const auto body = [&](const Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 1) {
        ASSERT_TRUE(refuse_memory());
      }
      const std::string message =
          thrown([&] { of_blocks ? (void)comm.all_gatherv(at::ones({5000})) : comm.all_reduce(at::ones({5000})); });
      EXPECT_TRUE(message.starts_with("MU402")) << message;
      EXPECT_NE(message.find("rank 1 found no memory for the"), std::string::npos) << message;
    };
    expect_forked(2, body, {.backend = "shm", .timeout = std::chrono::seconds(20)});
  }
}

TEST(SharedMemory, ATensorOfAGroupOutlivesIt) {
  const auto body = [](Communicator comm) {
    at::Tensor tensor = shared_zeros(comm, 100'000, at::kFloat, PeerAccess::write).fill_(comm.rank() + 1);
    const void* memory = tensor.const_data_ptr();
    comm.all_reduce(tensor);
    comm = Communicator();
    tensor = tensor.narrow(0, 99'999, 1).add_(1);
    EXPECT_EQ(permissions_of(memory), "rw-s");
    EXPECT_EQ(tensor.item<float>(), 4.f);
    tensor = at::Tensor();
    EXPECT_NE(permissions_of(memory), "rw-s");
  };
  expect_forked(2, body, kShm);
}

TEST(SharedMemory, ARowIsOneTensorOfWhichEachRankWritesItsPart) {
  const auto body = [](Communicator comm) {
    const auto elements = static_cast<int64_t>(2 * part_alignment(comm) / sizeof(float));
    auto [whole, own] = try_shared_tensor(comm, elements, at::kFloat);
    ASSERT_EQ(whole.numel(), 3 * elements);
    EXPECT_EQ(permissions_of(own.const_data_ptr()), "rw-s");
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(permissions_of(whole.const_data_ptr<float>() + elements * rank), "r--s") << rank;
    own.fill_(comm.rank() + 1);
    comm.barrier();
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(at::equal(whole.narrow(0, elements * rank, elements), at::full({elements}, rank + 1.f))) << rank;
    EXPECT_TRUE(at::equal(comm.all_gather(own).flatten(), whole));
    comm.barrier();
    comm = Communicator();
    EXPECT_EQ(whole.sum().item<float>(), 6.f * static_cast<float>(elements)) << "it outlives the group";
    const void* memory = whole.const_data_ptr();
    whole = own = at::Tensor();
    EXPECT_NE(permissions_of(memory), "r--s");
  };
  expect_forked(3, body, kShm);
}

TEST(SharedMemory, NoRankHasARowIfOneHasNoMemoryForIt) {
  if (!may_refuse_memory()) GTEST_SKIP() << "this machine allows no seccomp filter";
  const auto body = [](const Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) {
      ASSERT_TRUE(refuse_memory());
    }
    const auto row = try_shared_tensor(comm, 4096, at::kFloat);
    EXPECT_FALSE(row.whole.defined());
    EXPECT_FALSE(row.own.defined());
    comm.barrier();
  };
  expect_forked(2, body, kShm);
}

TEST(SharedMemory, ASegmentGetsTheMemoryOfAPartLater) {
  const Segment own = Segment::make(1 << 20, 8192);
  const auto allocated = [&] {
    struct stat status {};
    ::fstat(own.descriptor().get(), &status);
    return status.st_blocks * 512;
  };
  EXPECT_EQ(allocated(), 8192);
  own.allocate(65'536, 4096);
  EXPECT_EQ(allocated(), 12'288);
  EXPECT_ANY_THROW(own.allocate(1 << 20, 4096));
}

TEST(SharedMemory, ASegmentCannotShrinkAndIsReadOnlyForOthers) {
  Segment own = Segment::make(8192);
  own.data()[5000] = std::byte{7};
  EXPECT_NE(::ftruncate(own.descriptor().get(), 100), 0);
  const Segment seen = Segment::map(own.descriptor(), 8192);
  EXPECT_EQ(seen.data()[5000], std::byte{7});
  EXPECT_ANY_THROW(Segment::map(own.descriptor(), 1 << 20));
  EXPECT_ANY_THROW(Segment::map(own.descriptor(), 8192, PeerAccess::write));
  EXPECT_EQ(permissions_of(own.data()), "rw-s");
  EXPECT_EQ(permissions_of(seen.data()), "r--s");
  const Segment results = Segment::make(8192, PeerAccess::write);
  EXPECT_NE(::ftruncate(results.descriptor().get(), 100), 0);
  EXPECT_EQ(permissions_of(Segment::map(results.descriptor(), 8192, PeerAccess::write).data()), "rw-s");
}

}  // namespace
}  // namespace muster::comm
