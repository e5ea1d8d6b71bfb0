#include "comm/gloo_transport.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/samples.h"
#include "comm/wait_policy.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;

/// testing::expect_processes() over gloo.
void expect_over_gloo(int size, const std::function<void(const Communicator&)>& body, GroupOptions options = {}) {
  options.backend = "gloo";
  testing::expect_processes(size, body, "", options);
}

void check_reductions(const Communicator& comm, int64_t elements, at::ScalarType dtype) {
  int world = comm.size(), rank = comm.rank();
  at::Tensor sum = sample(rank, elements, dtype);
  comm.all_reduce(sum);
  EXPECT_EQ(difference_in_bits(sum, reduced(world, elements, dtype, ReduceOp::sum)), "");
  at::Tensor most = sample(rank, elements, dtype);
  comm.start_all_reduce(most, ReduceOp::max).wait();
  EXPECT_EQ(difference_in_bits(most, reduced(world, elements, dtype, ReduceOp::max)), "");
  at::Tensor in = sample(rank, elements * world, dtype), out = at::empty({elements}, dtype);
  comm.reduce_scatter(out, in);
  at::Tensor all = reduced(world, elements * world, dtype, ReduceOp::sum);
  EXPECT_EQ(difference_in_bits(out, all.narrow(0, elements * rank, elements)), "");
  comm.reduce(in, world - 1);
  EXPECT_EQ(difference_in_bits(in, rank == world - 1 ? all : sample(rank, elements * world, dtype)), "");
}

void check_moves(const Communicator& comm, int64_t elements, at::ScalarType dtype) {
  int world = comm.size(), rank = comm.rank();
  at::Tensor own = sample(rank, elements, dtype);
  at::Tensor all = comm.all_gather(own);
  for (int r = 0; r < world; ++r) EXPECT_EQ(difference_in_bits(all[r], sample(r, elements, dtype)), "");
  auto uneven = comm.all_gatherv(sample(rank, elements + rank, dtype));
  for (int r = 0; r < world; ++r) EXPECT_EQ(difference_in_bits(uneven[r], sample(r, elements + r, dtype)), "");
  std::vector<at::Tensor> parts;
  for (int to = 0; to < world; ++to) parts.push_back(sample(rank, elements + to, dtype));
  auto received = comm.all_to_all(parts);
  for (int r = 0; r < world; ++r) EXPECT_EQ(difference_in_bits(received[r], sample(r, elements + rank, dtype)), "");
  auto gathered = comm.gather(own, 0);
  EXPECT_EQ(difference_in_bits(comm.scatter(gathered, 0), own), "");
  comm.broadcast(own, world - 1);
  EXPECT_EQ(difference_in_bits(own, all[world - 1]), "");
  if (world > 1 && rank == 0) comm.send(all[0], world - 1);
  if (world > 1 && rank == world - 1) {
    comm.recv(own, 0);
    EXPECT_EQ(difference_in_bits(own, all[0]), "");
  }
}

class Gloo : public ::testing::TestWithParam<int> {};

TEST_P(Gloo, EveryOperationOnEveryDtype) {
  expect_over_gloo(GetParam(), [](const Communicator& comm) {
    at::set_num_threads(1);
    EXPECT_EQ(comm.backend(), comm.size() == 1 ? "none" : "gloo");
    for (int64_t elements : {0, 1, 13, 70'001}) {
      for (auto dtype : kAllDtypes) {
        SCOPED_TRACE(std::to_string(elements) + " of " + c10::toString(dtype));
        check_reductions(comm, elements, dtype);
        check_moves(comm, elements, dtype);
      }
    }
    std::string text(9000, static_cast<char>('a' + comm.rank()));
    EXPECT_EQ(comm.broadcast_bytes(text, comm.size() - 1), std::string(9000, static_cast<char>('a' + comm.size() - 1)));
    EXPECT_EQ(comm.all_gather_bytes(text).at(comm.rank()), text);
    comm.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Gloo, ::testing::Values(1, 2, 3, 4));

TEST(GlooTransport, OverlappingOperationsAndSubGroups) {
  expect_over_gloo(3, [](const Communicator& comm) {
    Communicator pair = comm.subgroup({0, 2});
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({200'000}, comm.rank() + i, at::kFloat));
      works.push_back((i % 2 ? pair : comm).start_all_reduce(tensors.back()));
    }
    for (auto& work : works) work.wait();
    for (int i = 0; i < 10; ++i) {
      float expected = i % 2 == 0 ? 3.f + 3.f * i : comm.rank() == 1 ? 1.f + i : 2.f + 2.f * i;
      EXPECT_EQ(tensors[i][777].item<float>(), expected) << i;
    }
  });
}

std::size_t threads_of_this_process() {
  std::size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) count += task.is_directory();
  return count;
}

TEST(GlooTransport, LeavesNoThreadBehind) {
  expect_over_gloo(2, [](const Communicator& comm) {
    at::set_num_threads(1);
    comm.barrier();
    auto before = threads_of_this_process();
    for (int i = 0; i < 3; ++i) {
      Communicator part = comm.subgroup({0, 1});
      part.start_all_reduce(at::ones({5})).wait();
      comm.barrier();
    }
    EXPECT_EQ(threads_of_this_process(), before);
  });
}

TEST(GlooTransport, AWaitInVainReachesItsDeadline) {
  for (int i = 0; i < 500; ++i) {
    const auto deadline = TimePoint::clock::now() + std::chrono::microseconds(100'000 + 137 * i);
    const auto left = left_until(deadline);
    ASSERT_GE(TimePoint::clock::now() + left, deadline) << i;
    ASSERT_LT(left, std::chrono::milliseconds(102 + i));
  }
  EXPECT_EQ(left_until(TimePoint::clock::now() - std::chrono::hours(1)), std::chrono::milliseconds(1));
}

TEST(GlooTransport, AKilledRankIsNoticedByAllAtOnce) {
  const auto body = [](const Communicator& comm) {
    std::string message = thrown([&] {
      for (int turn = 0; turn < 100; ++turn) {
        if (comm.rank() == 1 && turn == 10) ::raise(SIGKILL);
        comm.all_reduce(at::ones({turn % 2 ? 5 : 100'000}));
      }
    });
    EXPECT_TRUE(message.starts_with("MU052") && message.find("lost rank 1") != std::string::npos) << message;
    EXPECT_NE(message.find("operation 10 of group world"), std::string::npos) << message;
  };
  const auto results = testing::run_test_processes(3, body, "", {.backend = "gloo"});
  for (std::size_t rank : {0, 2}) EXPECT_TRUE(results[rank].ok()) << results[rank].output;
  if (!results[1].ok()) {
    EXPECT_EQ(results[1].signal, SIGKILL);
  }
}

TEST(GlooTransport, ATimeOutIsTold) {
  expect_over_gloo(3,
                   [](const Communicator& comm) {
                     if (comm.rank() == 2) {
                       // Comes when the others have given up, and learns why.
                       at::Tensor never = at::ones({1});
                       Communicator late = comm;
                       std::string message;
                       while (message.empty() || message == "no error") message = thrown([&] { late.barrier(); });
                       EXPECT_TRUE(message.starts_with("MU05")) << message;
                       return;
                     }
                     std::string message = thrown([&] { comm.all_reduce(at::ones({2})); });
                     EXPECT_TRUE(message.starts_with("MU05")) << message;
                   },
                   {.timeout = std::chrono::milliseconds(500)});
}

TEST(GlooTransport, AbortReachesRanksThatWait) {
  expect_over_gloo(2, [](const Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 1) comm.abort("enough");
    std::string message = thrown([&] { comm.all_reduce(at::ones({100'000})); });
    EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
  });
}

}  // namespace
}  // namespace muster::comm
