#include "comm/fork_check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

/// What a fork of a rank can do with the group of its parent, whose threads, sockets and memory it has not.
int use_in_a_fork(Communicator& group, Work& started) {
  const auto fails = [](const std::function<void()>& f) { return testing::thrown_id(f) == "MU571"; };
  const at::Tensor tensor = at::ones({10});
  if (!fails([&] { group.all_reduce(tensor); }) || !fails([&] { (void)group.start_all_reduce(tensor); })) return 1;
  if (!fails([&] { started.wait(); }) || !fails([&] { (void)started.is_completed(); })) return 2;
  if (!fails([&] { group.barrier(); }) || !fails([&] { (void)group.duplicate(); })) return 3;
  group.abort("a fork wants it");
  started = Work();
  group = Communicator();
  return 0;
}

TEST(ForkCheck, AForkOfARankIsToldThatGroupsAreNotItsOwn) {
  for (const std::string backend : {"gloo", "shm"})
    testing::expect_processes(2,
                              [](const Communicator& comm) {
                                Communicator group = comm.duplicate();
                                Work started = group.start_all_reduce(at::ones({300'000}));
                                const pid_t fork = ::fork();
                                if (fork == 0) ::_exit(use_in_a_fork(group, started));
                                int status = -1;
                                ::waitpid(fork, &status, 0);
                                EXPECT_EQ(status, 0);
                                started.wait();
                                const at::Tensor one = at::ones({1});
                                group.all_reduce(one);
                                EXPECT_EQ(one.item<float>(), 2);
                              },
                              backend, {.backend = backend});
}

}  // namespace
}  // namespace muster::comm
