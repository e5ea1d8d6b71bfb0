// Reductions whose results ranks write to each other's memory.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/forked_ranks.h"
#include "comm/shared_memory/segment.h"
#include "comm/shared_tensor.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;
using testing::thrown;

/// Where this process stops, once.
std::byte* stopping_page = nullptr;

void stop_here(int, siginfo_t* fault, void*) {
  const auto* at = static_cast<const std::byte*>(fault->si_addr);
  if (!stopping_page || at < stopping_page || at >= stopping_page + 4096) ::abort();
  ::mprotect(std::exchange(stopping_page, nullptr), 4096, PROT_READ | PROT_WRITE);
  ::raise(SIGSTOP);
}

/// This process stops when it first reads or writes the page in which the element is.
void stop_at(const at::Tensor& tensor, int64_t element) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) + element * tensor.element_size();
  stopping_page = reinterpret_cast<std::byte*>(address / 4096 * 4096);
  struct sigaction action {};
  action.sa_sigaction = stop_here;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
  ASSERT_EQ(::mprotect(stopping_page, 4096, PROT_NONE), 0);
}

bool has_ended(pid_t process) {
  const Descriptor watched(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  pollfd polled{watched.get(), POLLIN, 0};
  return ::poll(&polled, 1, 20'000) == 1;
}

TEST(InBuffers, ALateWriterWritesToTheEndOfItsBlockAndToResultsOnly) {
  constexpr int64_t kBlock = 65'536, kHalf = kBlock / 2, kElements = 4 * kBlock;  // of float32, two ranks
  const auto body = [&](const Communicator& comm) {
    const auto pid = static_cast<pid_t>(comm.all_gather(at::full({1}, ::getpid(), at::kLong))[1].item<int64_t>());
    const at::Tensor result = shared_zeros(comm, kElements, at::kFloat, PeerAccess::write).fill_(1);
    const at::Tensor parameters = shared_zeros(comm, kElements, at::kFloat).fill_(7);
    // In the middle of the second part of the third block; the last block is the first.
    constexpr int64_t kStop = kBlock + kHalf + kHalf / 2;
    if (comm.rank() == 1) stop_at(result, kStop);
    comm.barrier();
    const std::string message = thrown([&] { comm.all_reduce(result); });
    if (comm.rank() == 1) {
      EXPECT_TRUE(message.starts_with("MU051: rank 0 ended group world")) << message;
      return;
    }
    EXPECT_TRUE(message.starts_with("MU051: rank 0 waited")) << message;
    const auto parts_of_rank_1 = [&] { return result.view({4, 2, kHalf}).select(1, 1).clone(); };
    const at::Tensor before = parts_of_rank_1();
    EXPECT_TRUE(before[3].eq(2).all().item<bool>());
    EXPECT_EQ(before[1][kHalf - 1].item<float>(), 1.f);
    ::kill(pid, SIGCONT);
    ASSERT_TRUE(has_ended(pid));
    const at::Tensor after = parts_of_rank_1();
    EXPECT_TRUE(after[1].eq(2).all().item<bool>());
    EXPECT_TRUE(after[0].eq(1).all().item<bool>());
    EXPECT_EQ(difference_in_bits(parameters, at::full({kElements}, 7.f)), "");
  };
  expect_forked(2, body, {.backend = "shm", .timeout = std::chrono::seconds(2)});
}

/// How this process maps the segments that another one made.
std::multiset<std::string> permissions_of_peer(pid_t peer) {
  std::multiset<std::string> all;
  std::ifstream maps("/proc/self/maps");
  const std::string name = "/memfd:muster " + std::to_string(peer) + " ";
  for (std::string range, permissions, rest; maps >> range >> permissions && std::getline(maps, rest);)
    if (rest.find(name) != std::string::npos) all.insert(permissions);
  return all;
}

TEST(InBuffers, PeersMayWriteWhatIsSharedForResults) {
  const auto body = [](const Communicator& comm) {
    const at::Tensor pids = comm.all_gather(at::full({1}, ::getpid(), at::kLong));
    const auto peer = static_cast<pid_t>(pids[1 - comm.rank()].item<int64_t>());
    EXPECT_EQ(permissions_of_peer(peer), (std::multiset<std::string>{"r--s"}));
    const at::Tensor gathered = shared_zeros(comm, 5'000, at::kFloat);
    EXPECT_EQ(permissions_of_peer(peer), (std::multiset<std::string>{"r--s", "r--s"}));
    const at::Tensor result = shared_zeros(comm, 5'000, at::kFloat, PeerAccess::write);
    EXPECT_EQ(permissions_of_peer(peer), (std::multiset<std::string>{"r--s", "r--s", "rw-s"}));
    comm.barrier();
  };
  expect_forked(2, body, {.backend = "shm"});
}

}  // namespace
}  // namespace muster::comm
