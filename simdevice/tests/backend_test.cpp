#include "muster/sim/backend.h"

#include <unistd.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "comm/stores.h"
#include "muster/base/error.h"
#include "muster/cluster/cluster.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "ranks.h"

namespace muster::sim {
namespace {

class SimBackend : public Simulated {};
using Backend = c10::intrusive_ptr<c10d::Backend>;
using Tensors = std::vector<at::Tensor>;

at::Tensor on_rank(int rank, double value, int64_t size = 500) { return torch::full({size}, value, device(rank)); }

/// All collectives, one feeding the next; empty if what comes out is right on this rank of four.
std::string chain(int rank, const Backend& group) {
  const auto here = device(rank);
  auto part = on_rank(rank, rank, 3), whole = torch::empty({12}, here), scattered = torch::empty({3}, here);
  group->_allgather_base(whole, part)->wait();
  group->_reduce_scatter_base(scattered, whole)->wait();
  Tensors mine{scattered + rank};
  c10d::BroadcastOptions from_two;
  from_two.rootRank = 2;
  group->broadcast(mine, from_two)->wait();
  Tensors received{torch::zeros({3}, here)}, sent{part};
  if (rank == 1) group->send(sent, 3, 0)->wait();
  if (rank == 3) group->recv(received, 1, 0)->wait();
  auto exchanged = torch::empty({12}, here);
  std::vector<int64_t> equal_parts;
  group->alltoall_base(exchanged, whole, equal_parts, equal_parts)->wait();
  Tensors sum{on_rank(rank, rank + 1)};
  group->allreduce(sum)->wait();
  group->barrier()->wait();
  const auto all =
      at::cat({whole.view({4, 3}).select(1, 0), mine[0], received[0], exchanged.slice(0, 0, 12, 3), sum[0]});
  const auto expected =
      at::cat({torch::arange(4.0F), torch::full({3}, 10.0F), torch::full({3}, rank == 3 ? 1.0F : 0.0F),
               torch::full({4}, static_cast<float>(rank)), torch::full({500}, 10.0F)});
  return difference_in_bits(all, expected);
}

TEST_F(SimBackend, CollectivesFeedEachOther) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    set_seed(seed);
    expect_ranks(4, [&](int rank, const Backend& group) { EXPECT_EQ(chain(rank, group), "") << "seed " << seed; });
  }
}

TEST_F(SimBackend, HalfPrecisionIsSummedInFloat) {
  expect_ranks(3, [](int rank, const Backend& group) {
    Tensors sum{on_rank(rank, rank == 0 ? 256 : 0.7).to(at::kBFloat16)};
    const auto exact = (torch::full({500}, 256.0) + 2 * torch::full({500}, 0.7).to(at::kBFloat16).to(at::kFloat));
    group->allreduce(sum)->wait();
    EXPECT_EQ(difference_in_bits(sum[0], exact.to(at::kBFloat16)), "");
  });
}

using RankProgram = std::function<std::string(int rank, const Backend& group, bool correct)>;

/// On two ranks a missing order gives wrong bits under some seed, and is found under each.
void expect_order_matters(const RankProgram& program) {
  constexpr int kSeeds = 30;
  set_on_race(OnRace::collect);
  for (const bool correct : {true, false}) {
    int wrong = 0, races = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      set_seed(seed);
      std::atomic<bool> bad = false;
      expect_ranks(2, [&](int rank, const Backend& group) { bad = !program(rank, group, correct).empty() || bad; });
      wrong += bad;
      races += !take_races().empty();
    }
    EXPECT_EQ(wrong > 0, !correct);
    EXPECT_EQ(races, correct ? 0 : kSeeds);
  }
  set_on_race(OnRace::raise);
}

std::string reduce_and_use(int rank, const Backend& group, bool waits) {
  at::Tensor product;
  for (int i = 0; i < 4; ++i) {
    Tensors sum{on_rank(rank, rank + 1) * (i + 1)};
    const auto work = group->allreduce(sum);
    const auto meanwhile = on_rank(rank, 1) * 2;
    if (waits) work->wait();
    product = sum[0] * meanwhile;
  }
  return difference_in_bits(product, torch::full({500}, 24.0));
}

TEST_F(SimBackend, AMissingWait) { expect_order_matters(reduce_and_use); }

/// wait() orders the stream that is current where it is called, and no other.
TEST_F(SimBackend, AWaitOnAnotherStream) {
  expect_order_matters([](int rank, const Backend& group, bool right) {
    Tensors sum{on_rank(rank, rank + 1)};
    const auto work = group->allreduce(sum);
    {
      const c10::StreamGuard guard(right ? current(rank) : side(rank));
      work->wait();
    }
    return difference_in_bits(sum[0] * 2, torch::full({500}, 6.0));
  });
}

TEST_F(SimBackend, DisagreementNamesBothRanks) {
  const auto errors = run_ranks(2, [](int rank, const Backend& group) {
    Tensors sum{on_rank(rank, 1, 5 + rank)};
    group->allreduce(sum)->wait();
    (void)sum[0].cpu();
  });
  // One machine serves both threads, and the error is thrown to the host that waits first.
  EXPECT_NE((errors[0] + errors[1])
                .find("MU554: ALLREDUCE 1: rank 0 calls ALLREDUCE op 0 of 5 Float, but rank 1 calls "
                      "ALLREDUCE op 0 of 6 Float"),
            std::string::npos)
      << errors[0] << errors[1];
}

TEST_F(SimBackend, ARankThatLeavesIsNamed) {
  const auto errors = run_ranks(2, [](int rank, const Backend& group) {
    if (rank == 1) return;
    Tensors sum{on_rank(rank, 1)};
    group->allreduce(sum)->wait();
    (void)sum[0].cpu();
  });
  EXPECT_TRUE(errors[0].starts_with("MU555: ALLREDUCE 1: rank 1 has left the group")) << errors[0];
}

TEST_F(SimBackend, AHangNamesTheCommandsThatWait) {
  std::atomic<bool> over = false;
  const auto errors = run_ranks(2, [&](int rank, const Backend& group) {
    if (rank == 1) {
      over.wait(false);
      return;
    }
    Tensors sum{on_rank(rank, 1)};
    const auto work = group->allreduce(sum);
    std::string message = testing::thrown([&] { work->wait(std::chrono::milliseconds(50)); });
    over = true;
    over.notify_all();
    EXPECT_TRUE(message.starts_with("MU551")) << message;
    EXPECT_NE(message.find(": ALLREDUCE 1, then"), std::string::npos) << message;
    EXPECT_THROW((void)sum[0].cpu(), CommError);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

using Rank = std::function<int(int rank, const c10::intrusive_ptr<c10d::Store>& store, const Backend& group)>;

/// Ranks as processes, each with a device of its own, run `body` and end with its result.
std::vector<testing::RankResult> run_rank_processes(int size, const Rank& body) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  testing::ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  const auto run = [&](const ClusterEnvironment& cluster) {
    const c10::DeviceGuard guard(device(cluster.rank));
    const comm::StoreFile file(cluster, 60);
    const auto names = c10::make_intrusive<c10d::PrefixStore>("group", file.store());
    return body(cluster.rank, file.store(), make_backend(names, cluster.rank, size));
  };
  return testing::run_processes(size, run, options);
}

TEST_F(SimBackend, RanksMayBeProcesses) {
  const auto results = run_rank_processes(4, [](int rank, const auto&, const Backend& group) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      set_seed(seed);
      EXPECT_EQ(chain(rank, group), "") << "seed " << seed;
    }
    return HasFailure() ? 1 : 0;
  });
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

/// A host that does something else does not hold the others up.
TEST_F(SimBackend, AProcessNeedNotWaitForOthersToComeOn) {
  const auto results = run_rank_processes(2, [](int rank, const auto& store, const Backend& group) {
    Tensors sum{on_rank(rank, rank + 1)};
    const auto work = group->allreduce(sum);
    if (rank == 1) store->wait({"over"});
    work->wait();
    EXPECT_EQ(difference_in_bits(sum[0], torch::full({500}, 3.0)), "");
    if (rank == 0) store->set("over", "1");
    return HasFailure() ? 1 : 0;
  });
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

TEST_F(SimBackend, AProcessThatEndsIsNamed) {
  const auto results = run_rank_processes(2, [](int rank, const auto&, const Backend& group) {
    if (rank == 1) ::_exit(3);
    Tensors sum{on_rank(rank, 1)};
    group->allreduce(sum)->wait();
    std::cout << testing::thrown([&] { (void)sum[0].cpu(); }) << std::endl;
    return 0;
  });
  EXPECT_EQ(results[1].exit_code, 3);
  EXPECT_NE(results[0].output.find("MU555: ALLREDUCE 1: rank 1 has ended (process "), std::string::npos)
      << results[0].output;
}

}  // namespace
}  // namespace muster::sim
