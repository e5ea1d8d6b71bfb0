#include "base/signals.h"

#include <unistd.h>

#include <csignal>
#include <optional>

#include <gtest/gtest.h>

namespace muster {
namespace {

int g_calls = 0;

TEST(SignalWatch, KeepsWhatCameSinceItBegan) {
  SignalWatch watch({SIGUSR1, SIGTERM});
  EXPECT_EQ(watch.received(), 0);
  std::raise(SIGTERM);  // would end the process
  EXPECT_EQ(watch.received(), SIGTERM);
  SignalWatch later({SIGTERM});
  EXPECT_EQ(later.received(), 0);
  watch.forget(SIGTERM);
  EXPECT_EQ(watch.received(), 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(watch.received(), SIGUSR1);
  EXPECT_EQ(later.received(), 0);
}

TEST(SignalWatch, ForgetsOneSignalAlone) {
  SignalWatch watch({SIGUSR1, SIGUSR2});
  std::raise(SIGUSR1);
  std::raise(SIGUSR2);
  watch.forget(SIGUSR1);
  EXPECT_EQ(watch.received(), SIGUSR2);
  watch.forget(SIGUSR2);
  EXPECT_EQ(watch.received(), 0);
}

TEST(SignalWatch, GivesTheProgramsOwnHandlerBack) {
  std::signal(SIGUSR1, [](int) { ++g_calls; });
  std::optional<SignalWatch> watch(std::in_place, std::vector{SIGUSR1});
  std::raise(SIGUSR1);
  EXPECT_EQ(g_calls, 1);  // it still runs
  EXPECT_EQ(watch->received(), SIGUSR1);
  watch.reset();
  std::raise(SIGUSR1);
  EXPECT_EQ(g_calls, 2);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalWatch, CallsTheProgramsHandlerWithTheSignalsSender) {
  static pid_t sender = 0;
  struct sigaction action = {}, before = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) { sender = info->si_pid; };
  sigaction(SIGUSR2, &action, &before);
  {
    const SignalWatch watch({SIGUSR2});
    kill(getpid(), SIGUSR2);
    EXPECT_EQ(watch.received(), SIGUSR2);
  }
  EXPECT_EQ(sender, getpid());
  sigaction(SIGUSR2, &before, nullptr);
}

}  // namespace
}  // namespace muster
