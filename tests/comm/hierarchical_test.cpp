#include "comm/hierarchical/hierarchical.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/counting_transport.h"
#include "comm/every_operation.h"
#include "comm/group.h"
#include "comm/piggyback.h"
#include "comm/samples.h"
#include "comm/shared_tensor.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;

using Sizes = std::vector<int>;  // ranks of each host

int sum_of(const Sizes& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

std::vector<int> host_of_rank(const Sizes& hosts) {
  std::vector<int> all;
  for (std::size_t host = 0; host < hosts.size(); ++host) all.insert(all.end(), hosts[host], static_cast<int>(host));
  return all;
}

/// Runs `body` on ranks that are threads; what a rank throws is thrown.
void run(const Sizes& hosts, const std::function<void(const Communicator&)>& body, ThreadWorldOptions options = {}) {
  options.hosts = hosts;
  for (const auto& error : run_thread_world(sum_of(hosts), options, body))
    if (error) std::rethrow_exception(error);
}

class HierarchicalProduct : public ::testing::TestWithParam<std::tuple<Sizes, int64_t>> {};

TEST_P(HierarchicalProduct, GivesTheBitsOfMessages) {
  const auto& [hosts, elements] = GetParam();
  const int world = sum_of(hosts);
  const uint64_t seed = elements > 10'000 ? 0 : 1 + static_cast<uint64_t>(elements);
  for (auto dtype : kAllDtypes) {
    if (elements > 10'000 && dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kLong) continue;
    SCOPED_TRACE(c10::toString(dtype));
    std::vector<std::vector<at::Tensor>> ours(world), sent(world);
    const auto into = [&, size = elements](auto& results) {
      return [&, dtype, size](const Communicator& comm) { results[comm.rank()] = results_of(comm, size, dtype); };
    };
    run(hosts, into(ours), {.seed = seed});
    run_thread_world(world, {.seed = seed}, into(sent));
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_EQ(ours[rank].size(), sent[rank].size());
      for (std::size_t i = 0; i < sent[rank].size(); ++i)
        ASSERT_EQ(difference_in_bits(ours[rank][i], sent[rank][i]), "") << "result " << i << " on rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalProduct,
                         ::testing::Combine(::testing::Values(Sizes{2, 1}, Sizes{1, 2}, Sizes{2, 2}, Sizes{3, 2},
                                                              Sizes{1, 3, 2}),
                                            ::testing::Values<int64_t>(0, 13, 1'100, 20'003)));

TEST(Hierarchical, ManySlabsKeepTheirOrder) {
  constexpr int64_t kElements = 1'000'003;
  for (const Sizes& hosts : {Sizes{2, 2}, Sizes{1, 2, 1}})
    run(hosts, [&](const Communicator& comm) {
      at::Tensor expected = values(0, kElements, at::kFloat);
      for (int rank = 1; rank < comm.size(); ++rank) expected.add_(values(rank, kElements, at::kFloat));
      for (int turn = 0; turn < 3; ++turn) {
        at::Tensor sum = values(comm.rank(), kElements, at::kFloat);
        comm.all_reduce(sum);
        EXPECT_EQ(difference_in_bits(sum, expected), "");
        comm.broadcast(sum, turn);
        EXPECT_EQ(difference_in_bits(comm.all_gather(sum)[comm.size() - 1], expected), "");
      }
    });
}

TEST(Hierarchical, SumsOfTwoLevelsAddUpOnEachHostFirst) {
  for (auto dtype : {at::kFloat, at::kBFloat16})
    for (const Sizes& hosts : {Sizes{2, 3}, Sizes{1, 2}})
      run(hosts,
          [&](const Communicator& comm) {
            constexpr int64_t kElements = 100'000;
            at::Tensor whole;
            for (int host = 0, rank = 0; host < 2; ++host) {
              at::Tensor sum = values(rank++, kElements, dtype).to(at::kFloat);
              for (int more = 1; more < hosts[host]; ++more) sum += values(rank++, kElements, dtype).to(at::kFloat);
              whole = host == 0 ? sum : whole + sum;
            }
            at::Tensor sum = values(comm.rank(), kElements, dtype), mean = sum.clone(), root = sum.clone();
            comm.all_reduce(sum);
            EXPECT_EQ(difference_in_bits(sum, whole.to(dtype)), "");
            comm.all_reduce(mean, ReduceOp::mean);
            EXPECT_EQ(difference_in_bits(mean, (whole / comm.size()).to(dtype)), "");
            comm.reduce(root, 0);
            if (comm.rank() == 0) {
              EXPECT_EQ(difference_in_bits(root, sum), "");
            }
          },
          {.two_level_sums = true});
}

TEST(Hierarchical, ATensorOfTheGroupIsReducedWhereverItsPartsAre) {
  for (uint64_t seed : {1, 2, 3, 4, 5})
    run({2, 3},
        [](const Communicator& comm) {
          at::Tensor first = shared_zeros(comm, 100'000, at::kFloat), second = shared_zeros(comm, 100'000, at::kFloat);
          EXPECT_FALSE(first.storage().resizable());
          // Different places on different ranks, and private memory on one rank of a host.
          for (const at::Tensor& tensor : {first.narrow(0, 0, 50'000), first.narrow(0, comm.rank() * 10'000, 50'000),
                                           (comm.rank() ? first : second).narrow(0, 50'000, 50'000),
                                           comm.rank() == 1 ? at::empty({50'000}) : first.narrow(0, 7, 50'000)})
            for (int turn = 0; turn < 2; ++turn) {
              comm.all_reduce(tensor.fill_(comm.rank() + 1));
              EXPECT_EQ(tensor.eq(15).sum().item<int64_t>(), 50'000);
            }
          first = at::Tensor();
          comm.all_reduce(second.fill_(2), ReduceOp::mean);
          EXPECT_EQ(second.eq(2).sum().item<int64_t>(), 100'000);
        },
        {.seed = seed});
}

TEST(Hierarchical, RanksInAnotherOperationAreNamed) {
  run({2, 2}, [](const Communicator& comm) {
    const std::string message = thrown([&] {
      if (comm.rank() == 3) comm.all_reduce(at::ones({50'000}));
      else comm.all_reduce(at::ones({50'001}));
    });
    EXPECT_TRUE(message.starts_with("MU050")) << message;
    EXPECT_NE(message.find("rank 3 called all_reduce(sum) of float32 [50000]"), std::string::npos) << message;
  });
}

TEST(Hierarchical, PiggybacksTravelWithLargeOperationsToo) {
  run({2, 1}, [](const Communicator& comm) {
    attach_piggyback(comm, 10 + static_cast<uint64_t>(comm.rank()));
    comm.all_reduce(at::ones({50'000}));
    EXPECT_EQ(attached_piggybacks(comm), (std::vector<uint64_t>{10, 11, 12}));
  });
}

TEST(Hierarchical, GroupsOfItsRanksTakeWhatTheirPlacesAllow) {
  run({3, 2, 1},
      [](const Communicator& comm) {
        for (const std::vector<int>& ranks :
             {std::vector<int>{0, 2}, std::vector<int>{1, 2, 3, 4}, std::vector<int>{0, 3, 5},
              std::vector<int>{0, 3, 4}, std::vector<int>{0, 1, 2, 3, 4, 5}}) {
          const Communicator part = comm.subgroup(ranks);
          if (part.size() != static_cast<int>(ranks.size())) continue;
          at::Tensor sum = values(comm.rank(), 90'000, at::kFloat), expected = values(ranks[0], 90'000, at::kFloat);
          for (std::size_t i = 1; i < ranks.size(); ++i) expected.add_(values(ranks[i], 90'000, at::kFloat));
          part.all_reduce(sum);
          EXPECT_EQ(difference_in_bits(sum, expected), "");
        }
      },
      {.seed = 7});
}

TEST(Hierarchical, ARankThatEndsAnywhereEndsAll) {
  const Sizes hosts{2, 2};
  for (int victim : {0, 1, 3})
    for (int64_t step = 1; step < 150; step += 7) {
      SCOPED_TRACE("rank " + std::to_string(victim) + " at step " + std::to_string(step));
      const auto errors = run_thread_world(
          4, {.hosts = hosts, .kill_rank = victim, .kill_step = step, .seed = static_cast<uint64_t>(step)},
          [](const Communicator& comm) {
            for (int turn = 0; turn < 50; ++turn) {
              comm.all_reduce(at::ones({100'000}));
              (void)comm.all_gather(at::ones({2'000}));
              comm.broadcast(at::ones({70'000}), turn % 4);
            }
          });
      for (int rank = 0; rank < 4; ++rank) {
        ASSERT_TRUE(errors[rank]) << rank;
        const std::string id = testing::thrown_id([&] { std::rethrow_exception(errors[rank]); });
        EXPECT_TRUE(id == "MU063" || (id == "MU052" && rank != victim)) << id << " on rank " << rank;
      }
    }
}

TEST(Hosts, AreNumberedAndSayWhatIsInTheWay) {
  const Hosts hosts({7, 7, 3, 3, 3});
  EXPECT_EQ(hosts.count(), 2);
  EXPECT_EQ(hosts.of(4), 1);
  EXPECT_EQ(hosts.first(1), 2);
  EXPECT_EQ(hosts.largest(), 3);
  EXPECT_EQ(hosts.owner(0, 2), 0);
  EXPECT_EQ(hosts.owner(1, hosts.local_rank(4)), 4);
  EXPECT_EQ(hosts.obstacle(), "");
  EXPECT_EQ(hosts.of_ranks({0, 3, 4}).count(), 2);
  EXPECT_EQ(hosts.of_ranks({3, 4}).obstacle(), "all ranks are on one host");
  EXPECT_EQ(hosts.of_ranks({0, 3}).obstacle(), "no two ranks are on one host");
  EXPECT_EQ(Hosts({1, 2, 1}).obstacle(), "ranks 0 and 2 are on one host, but rank 1 between them is on another");
}

/// The bytes that leave each host in an operation.
std::vector<int64_t> leaving(const Sizes& sizes, bool hierarchical,
                             const std::function<void(const Communicator&)>& operation) {
  const int world = sum_of(sizes);
  const Hosts hosts(host_of_rank(sizes));
  GroupIdentity identity;
  const auto hub = std::make_shared<ThreadHub>(world, identity.waiting);
  std::vector<std::shared_ptr<ThreadHub>> memory;
  for (const int size : sizes) memory.push_back(std::make_shared<ThreadHub>(size, identity.waiting));
  std::vector<Traffic> all(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      auto transport = std::make_unique<CountingTransport>(hub->join(hub, rank), all[rank]);
      const int host = hosts.of(rank);
      std::unique_ptr<Collectives> collectives;
      if (hierarchical)
        collectives = std::make_unique<Hierarchical>(std::move(transport),
                                                     ThreadHub::join_areas(memory[host], rank - hosts.first(host)),
                                                     hosts, false, std::chrono::minutes(1));
      else collectives = make_pairwise(std::move(transport));
      operation(Communicator(std::make_shared<Group>(identity, std::move(collectives))));
    });
  for (auto& thread : threads) thread.join();
  std::vector<int64_t> bytes(sizes.size());
  for (int rank = 0; rank < world; ++rank)
    for (const auto& [to, sent] : all[rank].sent_to)
      if (hosts.of(to) != hosts.of(rank)) bytes[hosts.of(rank)] += sent;
  return bytes;
}

TEST(Hierarchical, AHostSendsWhatAnotherNeedsOnce) {
  constexpr int64_t kElements = 120'000, kBytes = kElements * 4;
  const auto gather = [](const Communicator& comm) { (void)comm.all_gather(at::ones({kElements})); };
  const auto sum = [](const Communicator& comm) { comm.all_reduce(at::ones({kElements})); };
  const auto scatter = [](const Communicator& comm) {
    comm.reduce_scatter(at::empty({kElements / comm.size()}), at::ones({kElements}));
  };
  const auto spread = [](const Communicator& comm) { comm.broadcast(at::ones({kElements}), 1); };
  using Bytes = std::vector<int64_t>;
  EXPECT_EQ(leaving({3, 3}, true, gather), (Bytes{3 * kBytes, 3 * kBytes}));
  EXPECT_EQ(leaving({3, 3}, false, gather), (Bytes{9 * kBytes, 9 * kBytes}));
  EXPECT_EQ(leaving({3, 2, 1}, true, gather), (Bytes{6 * kBytes, 4 * kBytes, 2 * kBytes}));
  EXPECT_EQ(leaving({3, 3}, true, sum), (Bytes{kBytes, kBytes}));
  EXPECT_EQ(leaving({2, 2, 2}, true, sum), (Bytes{kBytes, 2 * kBytes, kBytes}));
  EXPECT_EQ(leaving({3, 3}, true, scatter), (Bytes{kBytes, kBytes / 2}));
  EXPECT_EQ(leaving({2, 2, 2}, true, spread), (Bytes{kBytes, kBytes, 0}));
}

}  // namespace
}  // namespace muster::comm
