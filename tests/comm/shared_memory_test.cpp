#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/arithmetic.h"
#include "comm/samples.h"
#include "comm/shared_memory/reduction.h"
#include "comm/shared_memory/segment.h"
#include "comm/shared_memory/shared_collectives.h"
#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"
#include "muster/comm/detail/thread_world.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::expect_processes;
using testing::run_test_processes;
using testing::thrown;
using testing::thrown_id;

const GroupOptions kShm{.backend = "shm"};

/// Values of all sizes, so that the order of a sum shows in its bits.
at::Tensor values(int rank, int64_t elements, at::ScalarType dtype) {
  if (!at::isFloatingType(dtype)) return sample(rank, elements, dtype);
  const auto numbers = at::arange(elements, at::kDouble) * (1.37 + rank);
  return (numbers.sin() * std::pow(7.0, rank % 4)).to(dtype);
}

/// The results of every operation, one after another.
std::vector<at::Tensor> results_of(const Communicator& comm, int64_t elements, at::ScalarType dtype) {
  const int world = comm.size(), rank = comm.rank(), root = world / 2;
  std::vector<at::Tensor> all;
  for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
    at::Tensor tensor = values(rank, elements, dtype);
    comm.all_reduce(tensor, op);
    at::Tensor started = values(rank, elements, dtype);
    comm.start_all_reduce(started, op).wait();
    at::Tensor in = values(rank, elements * world, dtype), out = at::empty({elements}, dtype);
    comm.reduce_scatter(out, in, op);
    comm.reduce(in, root, op);
    comm.start_reduce_scatter(in.narrow(0, rank * elements, elements), in, op).wait();
    all.insert(all.end(), {tensor, started, out, in});
  }
  at::Tensor own = values(rank, elements, dtype), moved = own.clone();
  all.push_back(comm.all_gather(own));
  comm.broadcast(moved, root);
  all.push_back(moved);
  const auto append = [&](const std::vector<at::Tensor>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(comm.all_gatherv(values(rank, elements + rank, dtype)));
  std::vector<at::Tensor> parts;
  for (int to = 0; to < world; ++to) parts.push_back(values(rank, elements + to, dtype));
  append(comm.all_to_all(parts));
  append(comm.gather(own, root));
  all.push_back(comm.scatter(parts, root));
  comm.barrier();
  at::Tensor passed = own.clone();
  if (rank > 0) comm.recv(passed, rank - 1);
  if (rank + 1 < world) comm.send(passed, rank + 1);
  all.push_back(passed);
  return all;
}

class SharedProduct : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
 protected:
  int world() const { return std::get<0>(GetParam()); }
  int64_t elements() const { return std::get<1>(GetParam()); }
};

TEST_P(SharedProduct, GivesTheBitsOfMessages) {
  const uint64_t seed = elements() > 1000 ? 0 : 1 + static_cast<uint64_t>(world() * 10 + elements());
  for (auto dtype : kAllDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    std::vector<std::vector<at::Tensor>> shared(world()), sent(world());
    const auto into = [&](auto& results) {
      return [&, dtype](const Communicator& comm) { results[comm.rank()] = results_of(comm, elements(), dtype); };
    };
    for (const auto& error : run_thread_world(world(), {.seed = seed, .shared_memory = true}, into(shared)))
      if (error) std::rethrow_exception(error);
    run_thread_world(world(), {.seed = seed}, into(sent));
    for (int rank = 0; rank < world(); ++rank) {
      ASSERT_EQ(shared[rank].size(), sent[rank].size());
      for (std::size_t i = 0; i < sent[rank].size(); ++i)
        ASSERT_EQ(difference_in_bits(shared[rank][i], sent[rank][i]), "") << "result " << i << " on rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedProduct,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 7),
                                            ::testing::Values<int64_t>(0, 1, 13, 900, 70'001)));

TEST(SharedMemory, ManyChunksKeepTheirOrder) {
  for (int world : {2, 3})
    run_thread_world(world, {.shared_memory = true}, [&](const Communicator& comm) {
      constexpr int64_t kElements = 1'000'003;
      at::Tensor expected = values(0, kElements, at::kFloat);
      for (int rank = 1; rank < world; ++rank) expected.add_(values(rank, kElements, at::kFloat));
      for (int turn = 0; turn < 3; ++turn) {
        at::Tensor sum = values(comm.rank(), kElements, at::kFloat);
        comm.all_reduce(sum);
        EXPECT_EQ(difference_in_bits(sum, expected), "");
        comm.broadcast(sum, turn % world);
        EXPECT_EQ(difference_in_bits(comm.all_gather(sum)[world - 1], expected), "");
      }
    });
}

TEST(SharedMemory, ReducesAsLibTorchDoes) {
  for (auto dtype : kAllDtypes)
    for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product})
      for (int count : {2, 3, 5})
        for (int64_t elements : {1, 7, 1024, 2500}) {
          if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
          std::vector<at::Tensor> terms, copies;
          std::vector<const void*> memory;
          for (int term = 0; term < count; ++term) {
            terms.push_back(values(term, elements, dtype));
            copies.push_back(terms.back().clone());
            memory.push_back(terms.back().const_data_ptr());
          }
          at::Tensor expected = at::empty({elements}, dtype), copy = at::empty({elements}, dtype);
          reduce_terms(expected, copies, 0, op);
          // In place, as in an operation.
          reduce_memory(terms[1].mutable_data_ptr(), copy.mutable_data_ptr(), memory,
                        static_cast<std::size_t>(elements), dtype, op);
          ASSERT_EQ(difference_in_bits(terms[1], expected), "") << c10::toString(dtype) << " of " << count;
          ASSERT_EQ(difference_in_bits(copy, expected), "");
        }
}

TEST(SharedMemory, MismatchesAreErrorsOnAllRanksHoweverTheyInterleave) {
  using Body = std::function<void(const Communicator&)>;
  const Body usual = [](const Communicator& comm) { comm.all_reduce(at::ones({100'000})); };
  const std::vector<Body> odd{[](const Communicator& comm) { comm.all_reduce(at::ones({100'001})); },
                              [](const Communicator& comm) { comm.all_reduce(at::ones({3})); },
                              [](const Communicator& comm) { comm.broadcast(at::ones({100'000})); },
                              [](const Communicator& comm) { comm.all_gather_bytes("text"); },
                              [](const Communicator& comm) { comm.barrier(); }};
  for (int world : {2, 3})
    for (uint64_t seed = 0; seed < 40; ++seed) {
      std::vector<std::string> messages(world);
      run_thread_world(world, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
        const bool is_odd = comm.rank() == static_cast<int>(seed) % world;
        messages[comm.rank()] = thrown([&] { (is_odd ? odd[seed % odd.size()] : usual)(comm); });
      });
      for (const auto& message : messages) {
        EXPECT_TRUE(message.starts_with("MU050")) << "seed " << seed << ": " << message;
        EXPECT_NE(message.find("all_reduce(sum) of float32 [100000]"), std::string::npos) << message;
      }
    }
}

TEST(SharedMemory, AKilledRankEndsTheOthersAtAnyStep) {
  for (int64_t step = 1; step < 60; ++step) {
    std::vector<std::string> ids(3);
    run_thread_world(
        3, {.kill_rank = 1, .kill_step = step, .seed = 50 + static_cast<uint64_t>(step), .shared_memory = true},
        [&](const Communicator& comm) {
          ids[comm.rank()] = thrown_id([&] {
            for (int turn = 0; turn < 20; ++turn) {
              at::Tensor tensor = at::ones({turn % 2 ? 5 : 200'000});
              comm.all_reduce(tensor);
              EXPECT_EQ(tensor[4].item<float>(), 3.f);
              comm.all_gatherv(tensor);
            }
          });
        });
    EXPECT_EQ(ids[1], "MU063") << "step " << step;
    for (int rank : {0, 2}) EXPECT_EQ(ids[rank], "MU052") << "rank " << rank << ", step " << step;
  }
}

TEST(SharedMemory, AbortEndsWaitsOnAllRanksWithTheCause) {
  for (uint64_t seed = 1; seed < 20; ++seed) {
    std::vector<std::string> messages(3);
    run_thread_world(3, {.seed = seed, .shared_memory = true}, [&](const Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 1) comm.abort("the disk is full");
      messages[comm.rank()] = thrown([&] {
        for (int turn = 0; turn < 3; ++turn) comm.all_reduce(at::ones({50'000}));
      });
    });
    for (const auto& message : messages) {
      EXPECT_TRUE(message.starts_with("MU053")) << "seed " << seed << ": " << message;
      EXPECT_NE(message.find("the disk is full"), std::string::npos) << message;
    }
  }
}

/// Runs `body` as the ranks of a job, each a process.
std::vector<testing::RankResult> run_ranks(int size, const std::function<void(const ClusterEnvironment&)>& body,
                                           const std::string& label = {}) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  testing::ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  options.label = label;
  return testing::run_processes(
      size,
      [&](const ClusterEnvironment& cluster) {
        at::set_num_threads(1);
        body(cluster);
        return ::testing::Test::HasFailure() ? 1 : 0;
      },
      options);
}

void expect_ok(const std::vector<testing::RankResult>& results) {
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

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

class SharedProcesses : public ::testing::TestWithParam<int> {};

TEST_P(SharedProcesses, GiveTheBitsOfGlooAndLeaveNoSocket) {
  const int world = GetParam();
  expect_ok(run_ranks(world, [&](const ClusterEnvironment& cluster) {
    Communicator shared = connect(cluster, kShm), gloo = connect(cluster);
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
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedProcesses, ::testing::Values(2, 3, 4));

TEST(SharedMemory, AKilledProcessIsNoticedByAllAtOnce) {
  for (int turn_of_death : {0, 3, 10}) {
    const auto results = run_test_processes(
        3,
        [&](const Communicator& comm) {
          const std::string message = thrown([&] {
            for (int turn = 0; turn < 100; ++turn) {
              if (comm.rank() == 1 && turn == turn_of_death) ::raise(SIGKILL);
              comm.all_reduce(at::ones({turn % 2 ? 5 : 300'000}));
            }
          });
          EXPECT_TRUE(message.starts_with("MU052") && message.find("lost rank 1") != std::string::npos) << message;
        },
        std::to_string(turn_of_death), kShm);
    for (std::size_t rank : {0, 2}) EXPECT_TRUE(results[rank].ok()) << results[rank].output;
  }
}

TEST(SharedMemory, AStoppedProcessIsATimeOutAndALateWriterDoesNoHarm) {
  expect_processes(
      2,
      [](const Communicator& comm) {
        const at::Tensor pids = comm.all_gather(at::full({1}, static_cast<int64_t>(::getpid()), at::kLong));
        at::Tensor late = at::ones({100'000});
        if (comm.rank() == 1) ::raise(SIGSTOP);
        const std::string message = thrown([&] { comm.all_reduce(late); });
        const at::Tensor after = late.clone();
        if (comm.rank() == 0) {
          EXPECT_TRUE(message.starts_with("MU051: rank 0 waited")) << message;
          EXPECT_NE(message.find("for rank 1 in all_reduce(sum) of float32 [100000]"), std::string::npos) << message;
          ::kill(static_cast<pid_t>(pids[1].item<int64_t>()), SIGCONT);
        } else {
          EXPECT_TRUE(message.starts_with("MU051: rank 0 ended group world")) << message;
        }
        EXPECT_EQ(difference_in_bits(late, after), "");
      },
      "", {.backend = "shm", .timeout = std::chrono::milliseconds(2500)});
}

TEST(SharedMemory, AnAbortReachesAProcessThatSleeps) {
  expect_processes(
      2,
      [](const Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) comm.abort("enough");
        const std::string message = thrown([&] { comm.all_reduce(at::ones({100'000})); });
        EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
      },
      "", kShm);
}

TEST(SharedMemory, RanksThatCannotShareAgreeOnGlooAndWhy) {
  expect_ok(run_ranks(2, [](const ClusterEnvironment& cluster) {
    ::setenv("MUSTER_HOST", cluster.rank ? "left" : "right", 1);
    Communicator comm = connect(cluster, {.backend = "auto"});
    EXPECT_EQ(comm.backend(), "gloo");
    EXPECT_EQ(comm.backend_reason(), "no shared memory: ranks 0 and 1 are not on one host");
    comm.barrier();
    EXPECT_EQ(thrown_id([&] { connect(cluster, kShm); }), "MU400");
    ::setenv("MUSTER_HOST", "here", 1);
    EXPECT_EQ(connect(cluster, {.backend = "auto"}).backend(), "shm");
    // One rank without descriptors: all take gloo.
    if (cluster.rank == 1) ::setenv("TMPDIR", "/nowhere", 1);
    comm = connect(cluster, {.backend = "auto"});
    EXPECT_EQ(comm.backend(), "gloo");
    EXPECT_TRUE(comm.backend_reason().starts_with("no shared memory: rank 1: MU069")) << comm.backend_reason();
  }));
}

TEST(SharedMemory, AGroupThatOneRankCannotMakeIsAnErrorOnAll) {
  for (int unable : {0, 1, 2})
    expect_processes(
        3,
        [&](const Communicator& comm) {
          comm.barrier();
          rlimit before{};
          ::getrlimit(RLIMIT_NOFILE, &before);
          const int next = ::dup(0);
          ::close(next);
          const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
          if (comm.rank() == unable) ::setrlimit(RLIMIT_NOFILE, &none);
          EXPECT_EQ(thrown_id([&] { (void)comm.duplicate(); }), "MU401");
          ::setrlimit(RLIMIT_NOFILE, &before);
          comm.barrier();
          EXPECT_EQ(comm.duplicate().size(), 3);
        },
        std::to_string(unable), kShm);
}

TEST(SharedMemory, ASegmentCannotShrinkAndIsReadOnlyForOthers) {
  Segment own = Segment::make(8192);
  own.data()[5000] = std::byte{7};
  EXPECT_NE(::ftruncate(own.descriptor().get(), 100), 0);
  const Segment seen = Segment::map(own.descriptor(), 8192);
  EXPECT_EQ(seen.data()[5000], std::byte{7});
  EXPECT_ANY_THROW(Segment::map(own.descriptor(), 1 << 20));
  EXPECT_EQ(permissions_of(own.data()), "rw-s");
  EXPECT_EQ(permissions_of(seen.data()), "r--s");
}

}  // namespace
}  // namespace muster::comm
