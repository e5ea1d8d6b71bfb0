#include "comm/device_watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include "cluster/listening_socket.h"
#include "comm/stores.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "on_device/test_backend.h"

namespace muster::comm {
namespace {

using std::chrono::steady_clock;

constexpr int kRanks = 3;
/// The first operation of a GPU may load its kernels.
std::chrono::milliseconds timeout() { return std::chrono::seconds(testing::on_cuda() ? 10 : 2); }

enum class Fault { hang, mismatch, dead, dead_in_a_part, frozen };

/// NCCL's, or as these: nothing but abort() ends an operation in which a rank is missing or does something else.
GroupOptions options_of_ranks() {
  return {.device_backend = testing::collectives_of_device(/*hangs=*/true), .timeout = timeout()};
}

struct WatchOverADevice : testing::BackendOfDevice {};

/// What this rank does after all has gone well once. Returns when the group has ended.
void plant(Fault fault, const Communicator& world, const Communicator& part, c10d::Store& store) {
  const at::Tensor tensor = at::ones({100}, testing::test_device(world.rank()));
  const bool dies = fault == Fault::dead || fault == Fault::dead_in_a_part;
  if (dies && world.rank() == 2) ::_exit(3);
  if (fault == Fault::frozen && world.rank() == 0) {
    store.set("frozen", std::to_string(::getpid()));
    ::raise(SIGSTOP);
  }
  if (fault == Fault::hang && world.rank() == 1) store.wait({"ended/0", "ended/2"});
  if (fault == Fault::dead_in_a_part && world.rank() == 0) store.wait({"ended/1"});
  for (;;) {  // until it throws
    if (fault == Fault::mismatch && world.rank() == 1) world.broadcast(tensor);
    else if (fault != Fault::dead_in_a_part) world.all_reduce(tensor);
    else if (world.rank() == 1) part.all_reduce(tensor);
    else world.barrier();
    (void)tensor.cpu();  // the host waits here until abort()
  }
}

/// The same ranks with a server as their store, and a secret.
ClusterEnvironment over_tcp(ClusterEnvironment cluster, c10d::Store& file) {
  ::setenv("MUSTER_SECRET", std::string(32, 's').c_str(), 1);
  cluster.rendezvous = RendezvousKind::tcp;
  cluster.main_address = "127.0.0.1";
  if (cluster.rank == 0) {
    cluster::ListeningSocket socket(0, cluster.main_address);
    file.set("port", std::to_string(socket.port()));
    cluster.store_listen_fd = socket.release();
  }
  cluster.main_port = std::stoi(file.get_to_str("port"));
  return cluster;
}

int run_rank(Fault fault, const ClusterEnvironment& cluster) {
  testing::use_test_device();
  const c10::DeviceGuard on_device(testing::test_device(cluster.rank));
  const StoreFile file(cluster, 60);
  const bool has_server = fault == Fault::hang || fault == Fault::dead_in_a_part || fault == Fault::frozen;
  auto world = connect(has_server ? over_tcp(cluster, *file.store()) : cluster, options_of_ranks());
  auto part = world.subgroup({1, 2});
  const at::Tensor first = at::ones({10}, testing::test_device(cluster.rank));
  world.all_reduce(first);
  if (cluster.rank > 0) part.all_reduce(first);
  EXPECT_EQ(first.cpu()[9].item<float>(), cluster.rank > 0 ? 6 : 3);
  const auto begin = steady_clock::now();
  const auto message = testing::thrown([&] { plant(fault, world, part, *file.store()); });
  const auto seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  if (fault == Fault::frozen) part = world = Communicator();  // which must not wait for rank 0 either
  file.store()->set("ended/" + std::to_string(cluster.rank), "1");
  std::cout << "ended by " << message << "\nafter " << seconds << " s" << std::endl;
  if (fault == Fault::frozen && cluster.rank == 1) {
    file.store()->wait({"ended/2"});
    ::kill(std::stoi(file.store()->get_to_str("frozen")), SIGKILL);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

struct Ended {
  std::string message;
  double seconds = 0;
};

Ended ended(const testing::RankResult& result) {
  const auto begin = result.output.find("ended by "), end = result.output.find("\nafter ");
  if (begin == std::string::npos || end == std::string::npos) return {result.output};
  return {result.output.substr(begin + 9, end - begin - 9), std::stod(result.output.substr(end + 7))};
}

void expect_one_cause(Fault fault, const std::string& id, const std::string& rest, int rounds) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  testing::ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  int checked = 0;
  for (int round = 0; round < rounds; ++round) {
    options.label = std::to_string(round);
    const auto results = testing::run_processes(
        kRanks, [&](const ClusterEnvironment& cluster) { return run_rank(fault, cluster); }, options);
    if (results[0].output.empty()) continue;  // a rank passes the rounds before its own
    ++checked;
    std::string cause;
    for (int rank = kRanks; rank-- > 0;) {
      const bool died = rank == 2 && (fault == Fault::dead || fault == Fault::dead_in_a_part);
      const bool froze = rank == 0 && fault == Fault::frozen;
      EXPECT_EQ(results[static_cast<size_t>(rank)].exit_code, died ? 3 : 0);
      EXPECT_EQ(results[static_cast<size_t>(rank)].signal, froze ? SIGKILL : 0);
      EXPECT_FALSE(results[static_cast<size_t>(rank)].timed_out);
      if (died || froze) continue;
      const auto [message, seconds] = ended(results[static_cast<size_t>(rank)]);
      EXPECT_TRUE(message.starts_with(id)) << results[static_cast<size_t>(rank)].output;
      EXPECT_NE(message.find(rest), std::string::npos) << message;
      // Rank 0 may have it from its peer, and then says so.
      if (cause.empty() && fault != Fault::frozen) cause = message.substr(7);  // each speaks for itself then
      EXPECT_NE(message.find(cause), std::string::npos) << message << " is not " << cause << ", round " << round;
      if (rounds > 1) {
        EXPECT_LT(seconds, std::chrono::duration<double>(timeout()).count() + 2) << "round " << round;
      }
    }
  }
  EXPECT_EQ(checked, rounds);
}

/// 100 in all in the full suite.
int rounds() { return std::getenv("MUSTER_TEST_FULL") ? 25 : 1; }

TEST_F(WatchOverADevice, NamesTheRankThatHangs) {
  expect_one_cause(Fault::hang, "MU051",
                   "s for rank 1 in all_reduce(sum) of float32 [100], operation 1 of the device's "
                   "operations in group world, which that rank has not called",
                   rounds());
}

TEST_F(WatchOverADevice, NamesBothCallsOfRanksThatDisagree) {
  expect_one_cause(Fault::mismatch, "MU050", "rank 1 called broadcast(root 0) of float32 [100]", rounds());
}

TEST_F(WatchOverADevice, NamesTheRankThatHasDied) {
  expect_one_cause(Fault::dead, "MU052",
                   "lost rank 2 in all_reduce(sum) of float32 [100], operation 1 of the "
                   "device's operations in group world",
                   rounds());
}

TEST_F(WatchOverADevice, NamesTheRankOfAPartThatHasDiedToRanksOutsideOfIt) {
  expect_one_cause(
      Fault::dead_in_a_part, "MU052",
      "rank 1 lost rank 2 in all_reduce(sum) of float32 [100], operation 1 of the device's operations in group world/0",
      rounds());
}

TEST(DeviceWatchdog, EndsTheRanksWhereTheOneThatHoldsTheStoreIsFrozen) {
  expect_one_cause(Fault::frozen, "MU574",
                   "s in all_reduce(sum) of float32 [100], operation 1 of the device's operations in group world, and "
                   "cannot ask the other ranks why: the job's store, which rank 0 holds, has not answered for ",
                   rounds());
}

/// Rank 0 lets go of a part while the other rank has not called its operation, and the world goes on.
int let_go(const ClusterEnvironment& cluster) {
  sim::install({.patience = std::chrono::seconds(10)});
  const c10::DeviceGuard on_device(sim::device(cluster.rank));
  const StoreFile file(cluster, 60);
  const auto world = connect(cluster, options_of_ranks());
  std::optional<Communicator> part = world.subgroup({0, 1});
  const at::Tensor tensor = at::ones({10}, sim::device(cluster.rank));
  part->all_reduce(tensor);
  if (cluster.rank == 0) {
    (void)part->start_all_reduce(tensor.clone());
    part.reset();
    file.store()->set("gone", "1");
  } else {
    file.store()->wait({"gone"});
    std::cout << testing::thrown([&] { part->barrier(); }) << std::endl;
  }
  world.all_reduce(tensor);
  EXPECT_EQ(tensor.cpu()[9].item<float>(), 4);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(DeviceGroup, ThatIsDestroyedBeforeAnotherRankHasJoinedItsOperationEndsIt) {
  testing::ProcessWorldOptions options;
  options.arguments = {"--gtest_filter=DeviceGroup.ThatIsDestroyedBeforeAnotherRankHasJoinedItsOperationEndsIt"};
  for (const auto& result : testing::run_processes(2, let_go, options)) {
    EXPECT_TRUE(result.ok()) << result.output;
    EXPECT_NE(result.output.find("MU053: rank 0 ended group world/0"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("the group was destroyed with all_reduce(sum) of float32 [10], operation 1 of the "
                                 "device's operations, which has not ended "),
              std::string::npos)
        << result.output;
  }
}

std::string operations(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += std::to_string(i) + " " + names[i] + "\n";
  return text;
}

TEST(CauseOnADevice, IsWhatTheBackendReports) {
  const DeviceSuspicion suspicion{.group = "world", .ranks = {0, 1}, .backend = "own", .error = "it has failed"};
  const auto all = operations({"a", "b"});
  const auto cause = find_cause(suspicion, 1, {{0, all}, {1, all}});
  EXPECT_EQ(cause.id, "MU564");
  EXPECT_EQ(cause.text, "the backend own of rank 1 reports in group world that it has failed");
  EXPECT_EQ(find_cause(suspicion, 1, {{1, all}}).id, "MU052");
  EXPECT_EQ(find_cause(suspicion, 1, {{0, operations({"a", "c"})}, {1, all}}).id, "MU050");
}

TEST(CauseOnADevice, IsNoRankThatIsAhead) {
  Header header;
  header.kind = OperationKind::all_reduce;
  header.sequence = 1;
  const DeviceSuspicion suspicion{.group = "world", .ranks = {0, 1}, .backend = "own", .operation = header};
  const auto cause = find_cause(suspicion, 0, {{0, operations({"a", "b"})}, {1, operations({"a", "b", "c"})}});
  EXPECT_EQ(cause.id, "MU051");
  EXPECT_EQ(cause.rank, -1);
  EXPECT_NE(cause.text.find("for its device"), std::string::npos) << cause.text;
  EXPECT_EQ(find_cause(suspicion, 0, {{0, operations({"a", "b"})}, {1, operations({"a"})}}).rank, 1);
}

}  // namespace
}  // namespace muster::comm
