// Ranks that are killed or stopped at any place while they share memory. They are forked from the test, so that many of
// them are cheap.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

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

  std::string text() const {
    return (signal == SIGKILL ? "killed" : "stopped") + std::string(" rank ") + std::to_string(victim) + " of " +
           std::to_string(world) + ", " + std::to_string(microseconds) + " us after " +
           (while_connecting ? "the start" : "the first operation");
  }
};

Place place_of(uint64_t seed, int signal) {
  std::mt19937_64 random(seed);
  Place place{.signal = signal, .while_connecting = signal == SIGKILL && random() % 5 == 0};
  place.world = 2 + static_cast<int>(random() % 3);
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
  for (int turn = 0; turn < 1'000'000; ++turn) {
    const at::Tensor large = at::ones({turn % 3 ? 7 : 150'000}), half = at::ones({30'000}, at::kBFloat16);
    comm.all_reduce(large);
    comm.all_reduce(half);
    if (!large.eq(world).all().item<bool>() || !half.eq(world).all().item<bool>()) return false;
    if (comm.all_gatherv(at::full({50'000}, turn)).at(comm.size() - 1)[49'999].item<int64_t>() != turn) return false;
    if (!comm.all_gather(large).eq(world).all().item<bool>()) return false;
    if (turn % 4 == 1) comm.duplicate().barrier();
  }
  return true;
}

int end_of(const Place& place, int rank, const fs::path& store) {
  at::set_num_threads(1);
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = place.world;
  cluster.launcher = LauncherKind::muster;
  cluster.rendezvous = RendezvousKind::file;
  cluster.store_path = store.string();
  GroupOptions options{.backend = "shm", .rendezvous_timeout = milliseconds(place.while_connecting ? 1'000 : 20'000)};
  if (place.signal == SIGSTOP) options.timeout = milliseconds(400), options.rendezvous_timeout = milliseconds(2'000);
  const bool is_victim = rank == place.victim;
  std::set<std::string> expected{"MU051", "MU052", "MU401"};
  if (place.while_connecting) expected.insert({"MU057", "MU058", "MU400"});
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

/// Processes that hold the other end of a pipe for as long as they live.
class Ranks {
 public:
  Ranks() { EXPECT_EQ(::pipe2(pipe_, O_CLOEXEC), 0); }
  ~Ranks() {
    for (const int end : pipe_)
      if (end >= 0) ::close(end);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// `others` are those whose pipe the rank must not hold.
  void start(const std::function<int()>& body, Ranks& others) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(others.pipe_[1]);
      ::_exit(body());
    }
    pids_.push_back(pid);
  }
  /// False if one of them still lives then.
  bool ended(int milliseconds) {
    if (pipe_[1] >= 0) ::close(std::exchange(pipe_[1], -1));
    pollfd polled{pipe_[0], POLLIN, 0};
    return ::poll(&polled, 1, milliseconds) == 1;
  }
  void send(int signal) const {
    for (const pid_t pid : pids_) ::kill(pid, signal);
  }
  std::vector<int> statuses() const {
    std::vector<int> all;
    for (const pid_t pid : pids_) ::waitpid(pid, &all.emplace_back(), 0);
    return all;
  }

 private:
  int pipe_[2] = {-1, -1};
  std::vector<pid_t> pids_;
};

void expect_good_end(const Place& place) {
  SCOPED_TRACE(place.text());
  const fs::path folder = new_temporary_folder("shared-ends");
  Ranks victim, others;
  for (int rank = 0; rank < place.world; ++rank) {
    const auto body = [&, rank] { return end_of(place, rank, folder / "store"); };
    rank == place.victim ? victim.start(body, others) : others.start(body, victim);
  }
  EXPECT_TRUE(others.ended(30'000)) << "a rank is stuck";
  bool over = false;
  for (int turn = 0; turn < 60 && !over; ++turn) {
    // More than once: others that were late by themselves may have ended before it was stopped.
    if (place.signal == SIGSTOP) victim.send(SIGCONT);
    over = victim.ended(500);
  }
  EXPECT_TRUE(over) << "the victim is stuck";
  if (::testing::Test::HasFailure()) others.send(SIGKILL), victim.send(SIGKILL);
  for (const int status : others.statuses()) {
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), kWell);
  }
  for (const int status : victim.statuses()) {
    if (place.signal == SIGKILL) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    } else {
      EXPECT_EQ(status, 0);
    }
  }
  fs::remove_all(folder);
}

std::size_t sockets_left() {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(private_folder()))
    count += entry.path().filename().string().find("link-") != std::string::npos;
  return count;
}

int times(int usual, int full) { return std::getenv("MUSTER_TEST_FULL") ? full : usual; }

TEST(SharedMemoryEnds, ARankKilledAtAnyPlaceLeavesNoRankStuckAndNoSocket) {
  for (int seed = 1; seed <= times(40, 200) && !HasFailure(); ++seed) expect_good_end(place_of(seed, SIGKILL));
  // What a rank left that was killed while others connected goes with the next job.
  expect_good_end({.world = 2, .victim = 1, .microseconds = 5'000});
  EXPECT_EQ(sockets_left(), 0u);
}

TEST(SharedMemoryEnds, ARankStoppedAtAnyPlaceIsATimeOut) {
  for (int seed = 1; seed <= times(6, 60) && !HasFailure(); ++seed) expect_good_end(place_of(seed, SIGSTOP));
}

}  // namespace
}  // namespace muster::comm
