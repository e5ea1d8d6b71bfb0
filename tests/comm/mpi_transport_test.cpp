#include "comm/mpi/mpi_transport.h"

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/disagreements.h"
#include "comm/every_operation.h"
#include "comm/group.h"
#include "comm/overlapping_groups.h"
#include "comm/simulated_mpi.h"
#include "muster/comm/detail/mpi_ranks.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

/// Ranks as threads over messages as MPI's. tests/mpi has the same with processes over MPI itself.
void over_simulated_mpi(int size, const std::function<void(const Communicator&)>& body,
                        std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto messages = std::make_shared<mpi::SimulatedMessages>();
  std::vector<std::unique_ptr<mpi::SimulatedMpi>> calls;
  for (int rank = 0; rank < size; ++rank) calls.push_back(std::make_unique<mpi::SimulatedMpi>(messages, rank, size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      auto transport =
          make_mpi_transport(std::make_shared<mpi::DuplicatedComm>(*calls[rank], 1), "world", std::chrono::seconds(20));
      GroupIdentity identity;
      identity.backend = "mpi";
      identity.timeout = timeout;
      body(Communicator(std::make_shared<Group>(identity, make_pairwise(std::move(transport)))));
    });
  for (auto& rank : ranks) rank.join();
}

TEST(MpiTransport, GivesTheBitsOfOtherTransports) {
  for (int world : {2, 3}) {
    for (int64_t elements : {0, 13, 70'001}) {
      std::vector<std::vector<at::Tensor>> expected(world);
      testing::run_threads(
          world, 0, [&](const Communicator& comm) { expected[comm.rank()] = results_of(comm, elements, at::kFloat); });
      over_simulated_mpi(world, [&](const Communicator& comm) {
        const auto found = results_of(comm, elements, at::kFloat);
        const auto& wanted = expected[comm.rank()];
        ASSERT_EQ(found.size(), wanted.size());
        for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(difference_in_bits(found[i], wanted[i]), "") << i;
      });
    }
  }
}

TEST(MpiTransport, GroupsOverlap) { over_simulated_mpi(3, expect_groups_overlap); }

TEST(MpiTransport, MismatchesAreErrorsOnAll) {
  for (int world : {2, 3})
    over_simulated_mpi(world, [&](const Communicator& comm) {
      for (std::size_t run = 0; run < disagreements().size(); ++run) {
        const auto& one = disagreements()[run];
        const Communicator group = comm.duplicate();
        const bool is_odd = comm.rank() == static_cast<int>(run) % world;
        expect_both_sides(one, mismatch_seen(is_odd ? one.odd : one.usual, group),
                          "rank " + std::to_string(comm.rank()));
      }
      comm.barrier();
    });
}

TEST(MpiTransport, ALateRankTouchesNoMemoryAndLearnsTheFirstCause) {
  std::latch given_up(2);
  over_simulated_mpi(
      3,
      [&](const Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 2) given_up.wait();
        at::Tensor values = at::ones({300'000});
        const std::string message = thrown([&] { comm.all_reduce(values); });
        EXPECT_TRUE(message.starts_with("MU051: rank ")) << message;
        if (comm.rank() != 2) {
          values.reset();
          given_up.count_down();
        }
        EXPECT_EQ(thrown_id([&] { comm.barrier(); }), "MU051");
      },
      std::chrono::milliseconds(300));
}

TEST(MpiTransport, AbortReachesRanksThatWait) {
  over_simulated_mpi(3, [](const Communicator& comm) {
    for (int elements : {3, 300'000}) {
      const Communicator group = comm.duplicate();
      if (comm.rank() == 1) std::thread([&] { group.abort("enough"); }).join();
      const std::string message = thrown([&] { group.all_reduce(at::ones({elements})); });
      EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
    }
    comm.barrier();
  });
}

TEST(MpiTransport, TagsAreUsedUpWithAnError) {
  over_simulated_mpi(2, [](const Communicator& comm) {
    const std::string message = thrown([&] {
      for (int i = 0; i < 5000; ++i) (void)comm.duplicate();
    });
    EXPECT_TRUE(message.starts_with("MU557: MPI has 32767 tags")) << message;
  });
}

TEST(MpiTransport, NamesOfTheBackend) {
  EXPECT_FALSE(mpi_setup_of("mpi").value().communicator.has_value());
  const auto name = backend_over_mpi(-17, "mpi");
  EXPECT_EQ(name, "mpi over the communicator -17 of the program");
  EXPECT_EQ(mpi_setup_of(name).value().communicator, -17);
  for (const char* other :
       {"", "mp", "mpi:", "mpi:1", "mpix", "mpi_collectives", "mpi over the communicator x of the program", "gloo"})
    EXPECT_FALSE(mpi_setup_of(other)) << other;
  EXPECT_EQ(thrown_id([] { backend_over_mpi(1, "gloo"); }), "MU059");
}

}  // namespace
}  // namespace muster::comm
