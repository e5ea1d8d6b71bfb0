// Ranks that are killed or stopped at any place while they share memory. They are forked from the test, so that many of
// them are cheap.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "cluster/listening_socket.h"
#include "comm/forked_ranks.h"
#include "comm/shared_tensor.h"
#include "muster/base/error.h"
#include "muster/base/temporary_folder.h"
#include "muster/comm/rendezvous.h"

namespace muster::comm {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int kWell = 0, kNoError = 3, kWrongValue = 4, kWrongError = 5;

/// Where the victim gets the signal.
struct Place {
  int world = 2;
  int victim = 0;
  int signal = SIGKILL;
  bool while_connecting = false;  ///< the time is counted from there; otherwise from the first operation
  int64_t microseconds = 0;
  bool on_two_hosts = false;

  std::string text() const {
    return (signal == SIGKILL ? "killed" : "stopped") + std::string(" rank ") + std::to_string(victim) + " of " +
           std::to_string(world) + ", " + std::to_string(microseconds) + " us after " +
           (while_connecting ? "the start" : "the first operation") + (on_two_hosts ? " on two hosts" : "");
  }
};

Place place_of(uint64_t seed, int signal, bool on_two_hosts) {
  std::mt19937_64 random(seed);
  Place place{.signal = signal, .while_connecting = signal == SIGKILL && random() % 5 == 0};
  place.on_two_hosts = on_two_hosts;
  place.world = (on_two_hosts ? 3 : 2) + static_cast<int>(random() % (on_two_hosts ? 2 : 3));
  place.victim = static_cast<int>(random() % place.world);
  place.microseconds = 1 + static_cast<int64_t>(random() % (place.while_connecting ? 8'000 : 20'000));
  return place;
}

/// Sends this process the signal after that time, whatever it does.
void send_later(int signal, int64_t microseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = signal;
  timer_t timer;
  const itimerspec when{{}, {microseconds / 1'000'000, microseconds % 1'000'000 * 1000}};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0)
    throw UsageError("MU000", "no timer");
}

/// Operations of every kind, until one fails. False if a value is wrong.
bool work(const Communicator& comm) {
  const auto world = static_cast<float>(comm.size());
  at::Tensor living;
  for (int turn = 0; turn < 1'000'000; ++turn) {
    const at::Tensor large = at::ones({turn % 3 ? 7 : 150'000}), half = at::ones({30'000}, at::kBFloat16);
    comm.all_reduce(large);
    comm.all_reduce(half);
    if (!large.eq(world).all().item<bool>() || !half.eq(world).all().item<bool>()) return false;
    if (comm.all_gatherv(at::full({50'000}, turn)).at(comm.size() - 1)[49'999].item<int64_t>() != turn) return false;
    if (!comm.all_gather(large).eq(world).all().item<bool>()) return false;
    if (turn % 4 == 1) comm.duplicate().barrier();
    if (turn % 4 == 0) living = shared_zeros(comm, 200'000, at::kFloat, PeerAccess::write);
    comm.all_reduce(living.fill_(1));
    if (!living.eq(world).all().item<bool>()) return false;
  }
  return true;
}

int end_of(const Place& place, const ClusterEnvironment& cluster) {
  const int rank = cluster.rank;
  if (place.on_two_hosts) ::setenv("MUSTER_HOST", 2 * rank < place.world ? "left" : "right", 1);
  GroupOptions options{.backend = place.on_two_hosts ? "hierarchical" : "shm",
                       .rendezvous_timeout = milliseconds(place.while_connecting ? 400 : 20'000)};
  if (place.signal == SIGSTOP) options.timeout = milliseconds(400), options.rendezvous_timeout = milliseconds(2'000);
  const bool is_victim = rank == place.victim;
  std::set<std::string> expected{"MU051", "MU052", "MU401"};
  if (place.while_connecting) expected.insert({"MU057", "MU058", "MU400"});
  // Between hosts a new group connects by sockets, and waits for those of a rank that is gone.
  if (place.on_two_hosts)
    expected.insert("MU058"), options.rendezvous_timeout = std::min(options.rendezvous_timeout, milliseconds(3'000));
  try {
    if (is_victim && place.while_connecting) send_later(place.signal, place.microseconds);
    const Communicator comm = connect(cluster, options);
    comm.barrier();
    if (is_victim && !place.while_connecting) send_later(place.signal, place.microseconds);
    return work(comm) ? kNoError : kWrongValue;
  } catch (const Error& error) {
    if (expected.contains(std::string(error.id()))) return kWell;
    std::cerr << "rank " << rank << ": " << error.what() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << ": " << error.what() << std::endl;
  }
  return kWrongError;
}

/// The ranks of one place, under way.
class Job {
 public:
  explicit Job(const Place& place) : place_(place), folder_(new_temporary_folder("shared-ends")) {
    // A rank that is killed while it writes leaves a file that no rank can read.
    cluster::ListeningSocket store;
    if (place_.while_connecting) store = cluster::ListeningSocket(0, "127.0.0.1");
    for (int rank = 0; rank < place_.world; ++rank)
      (rank == place_.victim ? victim_ : others_).start([&, rank] { return end_of(place_, cluster_of(rank, store)); });
  }
  ~Job() { fs::remove_all(folder_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void expect_good_end() const {
    SCOPED_TRACE(place_.text());
    EXPECT_TRUE(others_.ended(milliseconds(30'000))) << "a rank is stuck";
    bool over = false;
    for (int turn = 0; turn < 60 && !over; ++turn) {
      // More than once: others that were late by themselves may have ended before it was stopped.
      if (place_.signal == SIGSTOP) victim_.send(SIGCONT);
      over = victim_.ended(milliseconds(500));
    }
    EXPECT_TRUE(over) << "the victim is stuck";
    if (::testing::Test::HasFailure()) others_.send(SIGKILL), victim_.send(SIGKILL);
    for (const int status : others_.statuses()) {
      EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
      EXPECT_EQ(WEXITSTATUS(status), kWell);
    }
    for (const int status : victim_.statuses()) {
      if (place_.signal == SIGKILL) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      } else {
        EXPECT_EQ(status, 0);
      }
    }
  }

 private:
  ClusterEnvironment cluster_of(int rank, cluster::ListeningSocket& store) const {
    ClusterEnvironment cluster = forked_cluster(rank, place_.world);
    cluster.rendezvous = place_.while_connecting ? RendezvousKind::tcp : RendezvousKind::file;
    cluster.store_path = (folder_ / "store").string();
    cluster.main_address = "127.0.0.1";
    cluster.main_port = store.port();
    if (rank == 0) cluster.store_listen_fd = store.release();
    else store = {};
    return cluster;
  }

  const Place place_;
  const fs::path folder_;
  ForkedRanks victim_, others_;
};

/// The places of these seeds, several at once: their ranks sleep or wait most of the time.
void expect_good_ends(int seeds, int at_once, int signal, bool on_two_hosts = false) {
  for (int first = 1; first <= seeds && !::testing::Test::HasFailure(); first += at_once) {
    std::deque<Job> jobs;
    for (int seed = first; seed < std::min(first + at_once, seeds + 1); ++seed)
      jobs.emplace_back(place_of(seed, signal, on_two_hosts));
    for (const auto& job : jobs) job.expect_good_end();
  }
}

/// What a rank left that was killed while others connected goes with the next job.
std::vector<std::string> sockets_left_after_the_next_job() {
  Job({.world = 2, .victim = 1, .microseconds = 5'000}).expect_good_end();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(private_folder()))
    if (auto name = entry.path().filename().string(); name.find("link-") != std::string::npos)
      names.push_back(std::move(name));
  return names;
}

int times(int usual, int full) { return std::getenv("MUSTER_TEST_FULL") ? full : usual; }

TEST(SharedMemoryEnds, ARankKilledAtAnyPlaceLeavesNoRankStuckAndNoSocket) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  expect_good_ends(times(40, 200), 5, SIGKILL);
  EXPECT_EQ(sockets_left_after_the_next_job(), std::vector<std::string>{});
}

TEST(SharedMemoryEnds, ARankStoppedAtAnyPlaceIsATimeOut) { expect_good_ends(times(6, 60), 3, SIGSTOP); }

TEST(SharedMemoryEnds, ARankThatEndsOnOneOfTwoHostsLeavesNoRankStuck) {
  if (const auto* reason = no_threads_in_forks()) GTEST_SKIP() << reason;
  expect_good_ends(times(10, 60), 5, SIGKILL, true);
  expect_good_ends(times(3, 20), 3, SIGSTOP, true);
  EXPECT_EQ(sockets_left_after_the_next_job(), std::vector<std::string>{});
}

}  // namespace
}  // namespace muster::comm
