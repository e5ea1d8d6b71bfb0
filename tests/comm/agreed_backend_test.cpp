#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/custom_backend.h"
#include "comm/device_world.h"
#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// A backend that needs no other rank where it is made.
struct Idle : c10d::Backend {
  using Backend::Backend;
  ~Idle() override = default;
};

BackendPtr idle(int rank) { return c10::make_intrusive<Idle>(rank, 3); }

using Make = std::function<BackendPtr(int rank, c10d::Store& agreement)>;

/// What each of three ranks throws.
std::vector<std::string> thrown_by_ranks(const Make& make,
                                         std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    return testing::thrown([&] {
      make_on_all_ranks({store, rank, 3, timeout, "group g", "the backend b"}, [&] { return make(rank, *store); });
    });
  };
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.push_back(std::async(std::launch::async, run, rank));
  std::vector<std::string> thrown;
  for (auto& rank : ranks) thrown.push_back(rank.get());
  return thrown;
}

std::vector<std::string> on_all(const std::string& message) { return std::vector<std::string>(3, message); }

TEST(AgreedBackend, IsOneThatAllRanksHave) {
  EXPECT_EQ(thrown_by_ranks([](int rank, auto&) { return idle(rank); }), on_all("no error"));
}

TEST(AgreedBackend, IsRefusedOnAllRanksWhereOneHasNone) {
  EXPECT_EQ(thrown_by_ranks([](int rank, auto&) {
              if (rank == 1) throw std::runtime_error("the card is gone\nand more");
              return idle(rank);
            }),
            on_all("MU575: rank 1 of group g could not make the backend b: the card is gone"));
  EXPECT_EQ(thrown_by_ranks([](int rank, auto&) {
              if (rank == 2) throw ConfigError("MU563", "no card");
              return idle(rank);
            }),
            on_all("MU563: rank 2 of group g could not make the backend b: no card"));
}

TEST(AgreedBackend, IsRefusedWithTheFirstCauseByRanksThatWaitedForTheOneThatHasNone) {
  EXPECT_EQ(thrown_by_ranks([](int rank, c10d::Store& agreement) {
              if (rank == 1) throw std::runtime_error("the card is gone");
              agreement.wait({"outcome"});  // as long as a time-out of the backend's own
              if (rank == 0) throw std::runtime_error("wait timeout after 300000ms");
              return idle(rank);
            }),
            on_all("MU575: rank 1 of group g could not make the backend b: the card is gone"));
}

TEST(AgreedBackend, IsWaitedForNoLongerThanTheTimeOut) {
  const auto thrown = thrown_by_ranks(
      [](int rank, c10d::Store& agreement) {
        if (rank == 1) agreement.wait({"outcome"});
        return idle(rank);
      },
      std::chrono::milliseconds(100));
  EXPECT_TRUE(thrown[0].starts_with("MU575: rank ")) << thrown[0];
  EXPECT_NE(thrown[0].find("until all ranks had the backend b; not yet: 1."), std::string::npos) << thrown[0];
  EXPECT_EQ(thrown, on_all(thrown[0]));
}

TEST(AgreedBackend, OfAPartThatOneRankHasNotIsRefusedOnAllOfIt) {
  sim::install();
  ThreadWorldOptions options;
  options.device_backend = std::make_shared<const BackendEntry>(
      BackendEntry{.device = c10::DeviceType::PrivateUse1,
                   .make =
                       [](const auto& store, int rank, int size, const GroupOptions&) {
                         if (size == 2 && rank == 1) throw std::runtime_error("the card is gone");
                         return sim::make_backend(store, rank, size,
                                                  {.timeout = std::chrono::milliseconds(size == 2 ? 500 : 60'000)});
                       },
                   .name = "b"});
  std::vector<std::string> thrown(3);
  EXPECT_EQ(errors_of(run_thread_world(3, options,
                                       [&](const Communicator& comm) {
                                         thrown[static_cast<std::size_t>(comm.rank())] = testing::thrown([&] {
                                           (void)comm.subgroup({0, 2});
                                         });
                                         comm.barrier();
                                       })),
            "");
  const std::string refused = "MU575: rank 1 of group world/0 could not make the backend b for sim: the card is gone";
  EXPECT_EQ(thrown, (std::vector<std::string>{refused, "no error", refused}));
}

TEST(AgreedBackend, MayBeOneThatIsPluggedIn) {
  testing::ProcessWorldOptions options;
  options.arguments = {"--gtest_filter=AgreedBackend.MayBeOneThatIsPluggedIn"};
  const auto connect_one = [](const ClusterEnvironment& cluster) {
    const BackendEntry entry{.make = [](const auto& store, int rank, int, const GroupOptions&) -> BackendPtr {
                               if (rank == 1) throw std::runtime_error("the card is gone");
                               store->wait({"of rank 1"}, std::chrono::milliseconds(300));
                               return nullptr;
                             },
                             .name = "b"};
    EXPECT_EQ(testing::thrown([&] {
                connect(cluster, {.backend = "own"}, {{"own", entry}});
              }),
              "MU575: rank 1 of group world could not make the backend b for cpu: the card is gone");
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  for (const auto& result : testing::run_processes(2, connect_one, options)) EXPECT_TRUE(result.ok()) << result.output;
}

}  // namespace
}  // namespace muster::comm
