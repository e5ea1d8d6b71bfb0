#include "comm/custom_transport.h"

#include <signal.h>
#include <stdlib.h>

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/disagreements.h"
#include "comm/every_operation.h"
#include "comm/overlapping_groups.h"
#include "comm/samples.h"
#include "comm/thread_world.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;
using testing::thrown_id;

/// libmuster_sockets.so has the transport of docs/howto/transports.md.
struct CustomTransport : ::testing::Test {
  CustomTransport() {
    ::setenv("MUSTER_BACKEND_PATH", MUSTER_BINARY_DIR "/tests/objects", 1);
    at::set_num_threads(1);
  }
  ~CustomTransport() override { ::unsetenv("MUSTER_BACKEND_PATH"); }
};

GroupOptions over_sockets(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  return {.backend = "sockets", .timeout = timeout};
}

/// Three processes, with a group over the transport and one over gloo.
void beside_gloo(const std::function<void(const Communicator& sockets, const Communicator& gloo)>& body,
                 const GroupOptions& options) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto results =
      testing::run_processes(3,
                             [&](const ClusterEnvironment& cluster) {
                               body(connect(cluster, options), connect(cluster, {.backend = "gloo"}));
                               return ::testing::Test::HasFailure() ? 1 : 0;
                             },
                             {.arguments = {std::string("--gtest_filter=CustomTransport.") + test->name()}});
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.output;
}

TEST_F(CustomTransport, GivesTheBitsOfGloo) {
  beside_gloo(
      [](const Communicator& sockets, const Communicator& gloo) {
        EXPECT_EQ(sockets.backend(), "sockets");
        EXPECT_EQ(sockets.backend_reason(),
                  "the transport from " MUSTER_BINARY_DIR "/tests/objects/libmuster_sockets.so");
        for (int64_t elements : {0, 13, 70'001, 900'000})
          for (auto dtype : kAllDtypes) {
            if (elements > 1000 && dtype != at::kFloat && (elements > 100'000 || dtype != at::kBFloat16)) continue;
            const auto ours = results_of(sockets, elements, dtype), theirs = results_of(gloo, elements, dtype);
            ASSERT_EQ(ours.size(), theirs.size());
            for (std::size_t i = 0; i < theirs.size(); ++i)
              ASSERT_EQ(difference_in_bits(ours[i], theirs[i]), "") << i << " of " << elements << c10::toString(dtype);
          }
        const std::string text(9000, static_cast<char>('a' + sockets.rank()));
        EXPECT_EQ(sockets.all_gather_bytes(text), gloo.all_gather_bytes(text));
      },
      over_sockets());
}

TEST_F(CustomTransport, MismatchesAreErrorsOnAll) {
  testing::expect_processes(
      3,
      [](const Communicator& comm) {
        for (std::size_t run = 0; run < disagreements().size(); ++run) {
          const auto& one = disagreements()[run];
          const Communicator group = comm.duplicate();
          const bool is_odd = comm.rank() == static_cast<int>(run % 3);
          expect_both_sides(one, mismatch_seen(is_odd ? one.odd : one.usual, group),
                            "rank " + std::to_string(comm.rank()));
        }
        comm.barrier();
      },
      "", over_sockets());
}

TEST_F(CustomTransport, GroupsOverlap) { testing::expect_processes(3, expect_groups_overlap, "", over_sockets()); }

TEST_F(CustomTransport, AKilledRankIsNoticedByAllAtOnce) {
  const auto body = [](const Communicator& comm) {
    const std::string message = thrown([&] {
      for (int turn = 0; turn < 100; ++turn) {
        if (comm.rank() == 1 && turn == 10) ::raise(SIGKILL);
        comm.all_reduce(at::ones({turn % 2 ? 5 : 400'000}));
      }
    });
    EXPECT_TRUE(message.starts_with("MU052") && message.find("lost rank 1") != std::string::npos) << message;
    EXPECT_NE(message.find("operation 10 of group world"), std::string::npos) << message;
  };
  const auto results = testing::run_test_processes(3, body, "", over_sockets());
  for (std::size_t rank : {0, 2}) EXPECT_TRUE(results[rank].ok()) << results[rank].output;
}

TEST_F(CustomTransport, ARankThatStaysAwayIsATimeOutAndAnAbortReachesAll) {
  beside_gloo(
      [](const Communicator& comm, const Communicator& beside) {
        for (int elements : {3, 400'000}) {
          const Communicator group = comm.duplicate();
          if (comm.rank() == 1) std::thread([&] { group.abort("enough"); }).join();
          const std::string message = thrown([&] { group.all_reduce(at::ones({elements})); });
          EXPECT_TRUE(message.starts_with("MU053") && message.find("enough") != std::string::npos) << message;
        }
        if (comm.rank() == 2) beside.barrier();
        const std::string message = thrown([&] { comm.barrier(), comm.barrier(); });
        if (comm.rank() != 2) beside.barrier();
        EXPECT_TRUE(message.starts_with("MU051: rank ")) << message;
      },
      over_sockets(std::chrono::seconds(2)));
}

/// Fails in the send number `step` of its frames.
class Failing final : public Transport {
 public:
  Failing(std::unique_ptr<Transport> under, int step, std::function<void()> fail)
      : under_(std::move(under)), steps_(step), fail_(std::move(fail)) {}
  int rank() const noexcept override { return under_->rank(); }
  int size() const noexcept override { return under_->size(); }
  void send_frame(int to, const Frame& frame, TimePoint deadline) override {
    if (--steps_ == 0) fail_();
    under_->send_frame(to, frame, deadline);
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override { under_->recv_frame(from, frame, deadline); }
  Request send(int to, const void* data, std::size_t bytes, int channel) override {
    return under_->send(to, data, bytes, channel);
  }
  Request recv(int from, void* data, std::size_t bytes, int channel) override {
    return under_->recv(from, data, bytes, channel);
  }
  void abort(const std::string& cause) noexcept override { under_->abort(cause); }
  void close() noexcept override { under_->close(); }
  std::unique_ptr<Transport> split(const std::vector<int>&, const std::string& name) override {
    if (name == "world/0") return nullptr;
    throw std::runtime_error("no cable");
  }

 private:
  std::unique_ptr<Transport> under_;
  int steps_;
  std::function<void()> fail_;
};

/// Ranks as threads, over connect(); the transport of rank 1 fails.
void with_failing(int step, const std::function<void()>& fail, const std::function<void(const Communicator&)>& body) {
  const auto hub = std::make_shared<ThreadHub>(3, std::make_shared<WaitPolicy>());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      auto transport = hub->join(hub, rank);
      if (rank == 1) transport = std::make_unique<Failing>(std::move(transport), step, fail);
      body(connect(std::move(transport), {.backend = "failing", .timeout = std::chrono::seconds(30)}));
    });
  for (auto& rank : ranks) rank.join();
}

TEST_F(CustomTransport, WhatOneThrowsIsTheCauseOnAllRanks) {
  with_failing(
      7, [] { throw std::runtime_error("the cable is out"); },
      [](const Communicator& comm) {
        EXPECT_EQ(comm.backend(), "failing");
        std::string message = thrown([&] {
          for (int turn = 0; turn < 10; ++turn) comm.all_reduce(at::ones({turn % 2 ? 5 : 100'000}));
        });
        EXPECT_TRUE(message.starts_with("MU061: ")) << message;
        EXPECT_NE(message.find("failed on rank 1 of group world: the cable is out"), std::string::npos) << message;
        EXPECT_EQ(thrown_id([&] { comm.barrier(); }), "MU061");
      });
  with_failing(
      5,
      [] {
        throw TransportFailure{TransportFailure::Kind::unusable, -1, "MU557: it is Sunday"};
      },
      [](const Communicator& comm) {
        comm.barrier();
        const std::string message = thrown([&] { comm.barrier(); });
        EXPECT_TRUE(message.starts_with("MU557: ")) << message;
        EXPECT_NE(message.find("rank 1 cannot take part in barrier, operation 1 of group world: it is Sunday"),
                  std::string::npos)
            << message;
      });
}

TEST_F(CustomTransport, WhateverOneThrowsIsTheCauseOnAllRanks) {
  with_failing(
      7, [] { throw 42; },
      [](const Communicator& comm) {
        const std::string message = thrown([&] {
          for (int turn = 0; turn < 10; ++turn) comm.all_reduce(at::ones({100'000}));
        });
        EXPECT_TRUE(message.starts_with("MU061: ")) << message;
        EXPECT_NE(message.find("on rank 1 of group world: an exception that is not a std::exception"),
                  std::string::npos)
            << message;
      });
  const CustomTransportSetup setup{"failing", std::chrono::seconds(5), {}};
  const auto none = []() -> std::unique_ptr<Transport> { throw "no reason"; };
  EXPECT_EQ(thrown_id([&] { (void)make_over_custom(setup, "world", 0, 2, none); }), "MU058");
}

TEST_F(CustomTransport, PartsThatCannotBeMadeAreErrors) {
  const auto hub = std::make_shared<ThreadHub>(1, std::make_shared<WaitPolicy>());
  Failing one(hub->join(hub, 0), -1, [] {});
  const CustomTransportSetup setup{"failing", std::chrono::seconds(5), {}};
  const auto made = [&](const std::string& name, int size) {
    return thrown([&] { (void)make_over_custom(setup, name, 0, size, [&] { return one.split({0}, name); }); });
  };
  EXPECT_EQ(made("world/0", 1),
            "MU577: the transport of the backend failing cannot be used: none was made for group world/0");
  EXPECT_EQ(made("world/1", 1),
            "MU058: rank 0 could not connect group world/1 by failing: no cable. Look for the first "
            "failure in the output of the other ranks.");
  const auto other = thrown([&] { (void)make_over_custom(setup, "world", 1, 2, [&] { return hub->join(hub, 0); }); });
  EXPECT_NE(other.find("what was made for rank 1 of 2 in group world says that it is rank 0 of 1"), std::string::npos)
      << other;
}

TEST_F(CustomTransport, WhatCannotBeUsedIsRefused) {
  EXPECT_EQ(find_transport("absent").make, nullptr);
  EXPECT_EQ(find_transport("no name").make, nullptr);
  EXPECT_NE(find_transport("sockets").make, nullptr);
  const auto stranger = thrown([] { find_transport("stranger"); });
  EXPECT_TRUE(stranger.starts_with("MU577: the transport of the backend stranger cannot be used")) << stranger;
  EXPECT_NE(stranger.find("does not define muster_transport_stranger"), std::string::npos) << stranger;
  const auto stale = thrown([] { find_transport("stale"); });
  EXPECT_NE(stale.find("built with Muster 0.0, LibTorch 1.13.0, and this program with Muster 0.1"), std::string::npos)
      << stale;
  const auto absent = thrown([] { (void)connect(ClusterEnvironment{}, {.backend = "absent"}); });
  EXPECT_TRUE(absent.starts_with("MU059: there is no backend 'absent'")) << absent;
  EXPECT_NE(absent.find("neither the program nor an object libmuster_absent.so has muster_transport_absent"),
            std::string::npos)
      << absent;
  EXPECT_EQ(thrown_id([] { (void)connect(nullptr); }), "MU577");
  const auto hub = std::make_shared<ThreadHub>(2, std::make_shared<WaitPolicy>());
  const GroupOptions with_device{.device_backend = std::make_shared<const BackendEntry>()};
  EXPECT_EQ(thrown_id([&] { (void)connect(hub->join(hub, 0), with_device); }), "MU577");
  const auto alone = std::make_shared<ThreadHub>(1, std::make_shared<WaitPolicy>());
  EXPECT_EQ(connect(alone->join(alone, 0)).size(), 1);
}

}  // namespace
}  // namespace muster::comm
