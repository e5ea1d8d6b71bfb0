#include "comm/shared_memory/link.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "comm/shared_memory/cores.h"
#include "comm/shared_memory/segment.h"
#include "muster/base/temporary_folder.h"

namespace muster::comm {
namespace {

namespace fs = std::filesystem;

TimePoint in_milliseconds(int count) { return TimePoint::clock::now() + std::chrono::milliseconds(count); }

std::string reason(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& failure) {
    return failure.what();
  }
  return "no error";
}

/// A socket of that name in the private folder; nobody listens at it once the result is gone.
Descriptor bind_at(const fs::path& path) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << path;
  return socket;
}

int process_that_has_ended() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(LinkListener, RemovesWhatKilledRanksLeftAndNothingElse) {
  const fs::path folder = private_folder();
  const fs::path abandoned = folder / "link-1-abandoned", born = folder / "unnamed-link-1-born",
                 forgotten = folder / "unnamed-link-1-forgotten",
                 of_a_dead_rank = folder / unnamed_socket(process_that_has_ended()),
                 of_a_living_one = folder / unnamed_socket(::getpid());
  bind_at(abandoned);
  bind_at(of_a_dead_rank);
  bind_at(of_a_living_one);
  bind_at(forgotten);
  fs::last_write_time(forgotten, fs::file_time_type::clock::now() - std::chrono::hours(2));
  const Descriptor not_listening_yet = bind_at(born);
  std::string path;
  {
    const LinkListener other(2), listener(2);
    path = listener.path();
    EXPECT_TRUE(fs::exists(other.path())) << "it was alive when the second one came";
    EXPECT_FALSE(fs::exists(abandoned));
    EXPECT_FALSE(fs::exists(forgotten));
    EXPECT_TRUE(fs::exists(born));
    EXPECT_FALSE(fs::exists(of_a_dead_rank));
    EXPECT_TRUE(fs::exists(of_a_living_one));
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
  fs::remove(born);
  fs::remove(of_a_living_one);
}

TEST(Link, HandsOverMemoryAndSeesTheEnd) {
  const LinkListener listener(2);
  Link here = Link::connect(listener.path());
  const Link there = listener.accept(in_milliseconds(5000));
  ASSERT_GE(there.descriptor(), 0);
  EXPECT_TRUE(here.is_own_user() && there.is_own_user());
  EXPECT_TRUE(there.watch_process());
  const Segment segment = Segment::make(8192);
  segment.data()[4711] = std::byte{42};
  here.wake();
  here.send("hello", {segment.descriptor().get()}, in_milliseconds(5000));
  LinkMessage message = there.recv(in_milliseconds(5000));
  EXPECT_EQ(message.text, "hello");
  ASSERT_EQ(message.descriptors.size(), 1u);
  EXPECT_EQ(Segment::map(message.descriptors[0], 8192).data()[4711], std::byte{42});
  EXPECT_EQ(there.take(message), Link::Arrival::nothing);
  EXPECT_EQ(reason([&] { there.recv(in_milliseconds(1)); }), "a rank of this host sent nothing in time");
  here = Link();
  EXPECT_EQ(there.take(message), Link::Arrival::end);
  EXPECT_EQ(reason([&] { there.recv(in_milliseconds(5000)); }), "a rank of this host has closed its connection");
}

TEST(Link, AnEndThatReadsNothingStopsNobodyForever) {
  auto [here, end] = Link::make_pair();
  const Link there(std::move(end));
  for (int i = 0; i < 10'000; ++i) here.wake();
  EXPECT_EQ(reason([&] { here.send("offer", {}, in_milliseconds(20)); }), "a rank of this host read nothing in time");
  LinkMessage message;
  while (there.take(message) == Link::Arrival::wake) {}
  here.send("offer", {}, in_milliseconds(5000));
  EXPECT_EQ(there.recv(in_milliseconds(5000)).text, "offer");
}

TEST(LinkListener, WaitsUntilTheDeadlineOnly) { EXPECT_LT(LinkListener(1).accept(in_milliseconds(1)).descriptor(), 0); }

TEST(Cores, AreCountedOnceHoweverManyRanksMayUseThem) {
  cpu_set_t low{}, high{}, both{};
  for (const int core : {0, 1}) CPU_SET(core, &low);
  for (const int core : {1, 2, 64}) CPU_SET(core, &high);
  CPU_OR(&both, &low, &high);
  EXPECT_EQ(CPU_COUNT(&both), 4);
  const cpu_set_t own = own_cores();
  EXPECT_GE(CPU_COUNT(&own), 1);
  EXPECT_GE(granted_cores(), 1);
}

}  // namespace
}  // namespace muster::comm
