#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "data/batch_order.h"
#include "data/worker_queue.h"
#include "datasets.h"

namespace muster::data {
namespace {

using testing::list;
using testing::no_worker_left;
using testing::Noisy;
using testing::numbers;
using testing::run;
using testing::worker_threads;

TEST(Workers, AnyNumberGivesTheSameBits) {
  const Noisy noisy{101};
  std::vector<std::vector<at::Tensor>> passes;
  for (const int workers : {0, 1, 2, 3, 7}) {
    const DataLoader loader(noisy, {.batch_size = 6, .prefetch = 3, .seed = 8, .shuffle = true, .workers = workers});
    auto& pass = passes.emplace_back();
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto& [rows, indices] : loader) {
        pass.push_back(rows.clone());
        pass.push_back(indices.clone());
      }
  }
  for (const auto& pass : passes) {
    ASSERT_EQ(pass.size(), passes[0].size());
    for (std::size_t i = 0; i < pass.size(); ++i) EXPECT_TRUE(pass[i].equal(passes[0][i]));
  }
}

struct Failing {
  int64_t size() const { return 40; }
  int64_t get(size_t i) const {
    if (i == 23) throw std::out_of_range("no page 23");
    return static_cast<int64_t>(i);
  }
};

TEST(Workers, AFailingSampleEndsTheLoopWithItsIndex) {
  for (const int workers : {0, 1, 3}) {
    const DataLoader loader(Failing(), {.batch_size = 5, .workers = workers});
    int64_t seen = 0;
    try {
      for (auto& batch : loader) seen += batch.numel();
      ADD_FAILURE() << "no exception";
    } catch (const DatasetError& e) {
      EXPECT_EQ(e.id(), "MU102");
      EXPECT_EQ(e.index(), 23);
      EXPECT_NE(std::string(e.what()).find("no page 23"), std::string::npos) << e.what();
      EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
    }
    EXPECT_EQ(seen, 20) << "batches before the failing one come first";
    EXPECT_TRUE(no_worker_left());
    EXPECT_EQ(loader.epoch(), 0);
  }
}

struct Grown {
  at::Tensor leaf = at::full({2}, 3.0).requires_grad_();
  int64_t size() const { return 6; }
  at::Tensor get(size_t i) const { return leaf * static_cast<double>(i); }
};

TEST(Workers, RecordNoGradients) {
  const Grown grown;
  for (const int workers : {0, 2}) {
    for (auto& batch : DataLoader(grown, {.batch_size = 3, .workers = workers})) {
      EXPECT_FALSE(batch.requires_grad());
      EXPECT_TRUE((grown.leaf * 2).requires_grad()) << "the loop itself is as it was";
      EXPECT_TRUE((batch * grown.leaf).requires_grad());
      batch.add_(1);
      batch.requires_grad_();
      (batch * 2).sum().backward();
      EXPECT_TRUE(batch.grad().defined());
    }
  }
}

struct Uneven {
  int64_t size() const { return 8; }
  at::Tensor get(size_t i) const { return at::full({i == 6 ? 3 : 2}, 1.0); }
};

TEST(Workers, SamplesOfDifferentShapeAreNamed) {
  try {
    for (auto& batch : DataLoader(Uneven(), {.batch_size = 4, .workers = 1})) (void)batch;
    ADD_FAILURE() << "stacked";
  } catch (const DatasetError& e) {
    EXPECT_EQ(e.index(), 6);
    EXPECT_NE(std::string(e.what()).find("MU100"), std::string::npos) << e.what();
  }
}

TEST(Workers, NoThreadIsLeftAfterBreakReturnAndEnd) {
  const auto data = numbers(1000);
  const DataLoader loader(data, {.batch_size = 2, .workers = 3});
  auto leave = [&] {
    for (auto& batch : loader)
      if (list(batch)[0] == 10) return worker_threads();
    return -1;
  };
  EXPECT_GE(leave(), 1) << "a thread has its name once it runs";
  EXPECT_TRUE(no_worker_left());
  for (auto& batch : loader) {
    (void)batch;
    break;
  }
  EXPECT_TRUE(no_worker_left());
  EXPECT_EQ(run(loader).size(), 500u);
  EXPECT_TRUE(no_worker_left());
  try {
    for (auto& batch : loader) throw std::runtime_error((void(batch), "user's own"));
  } catch (const std::runtime_error&) {}
  EXPECT_TRUE(no_worker_left());
}

struct Counting {
  std::atomic<int64_t>* made;
  int64_t size() const { return 1000; }
  int64_t get(size_t i) const { return ++*made, static_cast<int64_t>(i); }
};

TEST(Workers, MakeNoMoreThanThePrefetchedBatches) {
  std::atomic<int64_t> made = 0;
  const DataLoader loader(Counting{&made}, {.batch_size = 10, .prefetch = 2, .workers = 2});
  int64_t taken = 0;
  for (auto& batch : loader) {
    taken += batch.numel();
    ASSERT_LE(made.load(), taken + 2 * 2 * 10);
  }
  EXPECT_EQ(made, 1000);
}

/// Holds whoever asks for a sample until the gate opens.
struct Gated {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  Gate* gate;
  int64_t size() const { return 4; }
  int64_t get(size_t i) const {
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [this] { return gate->open; });
    return static_cast<int64_t>(i);
  }
};

TEST(WorkerQueue, AWaitForABatchHasATimeOut) {
  Gated::Gate gate;
  const auto maker = std::make_shared<DatasetBatchMaker<Gated, at::Tensor>>(std::make_shared<Gated>(Gated{&gate}));
  const auto order = std::make_shared<ComputedOrder>(SplitPlan({.size = 4}), false, 0, 0);
  WorkerQueue queue({.first = 0, .random = EpochRandom(0, 0), .timeout = std::chrono::milliseconds(20)}, order,
                    {maker});
  try {
    (void)queue.take();
    ADD_FAILURE() << "no time-out";
  } catch (const Error& e) {
    EXPECT_EQ(e.id(), "MU105");
  }
  {
    const std::lock_guard lock(gate.mutex);
    gate.open = true;
  }
  gate.changed.notify_all();
  EXPECT_NE(queue.take()->box, nullptr);
}

/// Stays in get() until the gate opens, and tells whether its owner was gone by then.
struct Late {
  Gated::Gate* gate;
  std::atomic<bool>* inside;
  std::atomic<bool>* owner_gone;
  std::atomic<bool>* used_after;
  int64_t size() const { return 4; }
  int64_t get(size_t i) const {
    *inside = true;
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [this] { return gate->open; });
    if (*owner_gone) *used_after = true;
    return static_cast<int64_t>(i);
  }
};

std::unique_ptr<WorkerQueue> queue_over(const Late& late, std::chrono::milliseconds timeout) {
  const auto maker = std::make_shared<DatasetBatchMaker<Late, at::Tensor>>(std::make_shared<Late>(late));
  auto queue = std::make_unique<WorkerQueue>(
      WorkerQueue::Settings{
          .first = 0, .patience = std::chrono::milliseconds(20), .random = EpochRandom(0, 0), .timeout = timeout},
      std::make_shared<ComputedOrder>(SplitPlan({.size = 4}), false, 0, 0),
      std::vector<std::shared_ptr<BatchMaker>>{maker});
  while (!*late.inside) std::this_thread::yield();
  return queue;
}

TEST(WorkerQueue, AThreadThatStaysInTheDataSetIsSpokenOfAndWaitedFor) {
  Gated::Gate gate;
  std::atomic<bool> inside = false, owner_gone = false, used_after = false;
  auto queue = queue_over({&gate, &inside, &owner_gone, &used_after}, std::chrono::minutes(5));
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int terminal = dup(2);
  dup2(pipe_ends[1], 2);
  close(pipe_ends[1]);
  std::string said;
  std::thread listener([&] {  // opens the gate once it was said that a thread is waited for
    char letters[256];
    ssize_t count = 0;
    while (said.find("MU129") == std::string::npos && (count = read(pipe_ends[0], letters, sizeof letters)) > 0)
      said.append(letters, static_cast<size_t>(count));
    const std::lock_guard lock(gate.mutex);
    gate.open = true;
    gate.changed.notify_all();
  });
  queue.reset();
  owner_gone = true;
  dup2(terminal, 2);
  listener.join();
  close(terminal);
  close(pipe_ends[0]);
  EXPECT_TRUE(no_worker_left());
  EXPECT_FALSE(used_after) << "a thread went on with what its owner had freed";
  EXPECT_NE(said.find("1 of its worker threads stayed in the dataset's code"), std::string::npos) << said;
}

TEST(WorkerQueue, TheProcessEndsRatherThanLeaveAThreadBehind) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork of threads may start none under ThreadSanitizer
  Gated::Gate gate;
  std::atomic<bool> inside = false, owner_gone = false, used_after = false;
  const auto end = [&](bool overdue) {
    auto queue = queue_over({&gate, &inside, &owner_gone, &used_after}, std::chrono::milliseconds(20));
    try {
      if (overdue) queue->take();
    } catch (const Error&) {}
    queue.reset();
    _exit(0);
  };
  EXPECT_EXIT(end(false), ::testing::ExitedWithCode(1),
              "MU129: a loader's worker thread stayed in the dataset's code for 0.0 s after");
  EXPECT_EXIT(end(true), ::testing::ExitedWithCode(1), "MU105: no worker made batch 0 within 20 ms(.|\n)*MU129");
}

struct AskingThreads {
  int64_t size() const { return 6; }
  int64_t get(size_t) const { return at::get_num_threads(); }
};

TEST(Workers, UseOneIntraOpThreadEachAndLeaveOthersAlone) {
  const int before = at::get_num_threads();
  for (const auto& batch : run(DataLoader(AskingThreads(), {.batch_size = 2, .workers = 2})))
    for (const int64_t threads : batch) EXPECT_EQ(threads, 1);
  EXPECT_EQ(at::get_num_threads(), before);
  int fresh = 0;
  std::thread([&] { fresh = at::get_num_threads(); }).join();
  EXPECT_EQ(fresh, before) << "threads started later keep the process's number";
}

TEST(Workers, LeaveTheDefaultGeneratorAlone) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const auto before = generator.get_state();
  for (const int workers : {0, 2}) {
    const DataLoader loader(Noisy{50}, {.batch_size = 5, .shuffle = true, .workers = workers});
    for (auto& batch : loader) (void)batch;
  }
  EXPECT_TRUE(generator.get_state().equal(before));
}

TEST(WorkerQueue, SaysWhenThreadsCannotBeStarted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers do not run with little address space";
#endif
  // In a process of its own: with no address space left for stacks, threads are refused.
  auto start_many = [] {
    long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = static_cast<rlim_t>(pages) * sysconf(_SC_PAGESIZE) + (64u << 20);
    const rlimit both{limit, limit};
    if (setrlimit(RLIMIT_AS, &both) != 0) _exit(2);
    const auto data = numbers(3);
    try {
      run(DataLoader(data, {.workers = 500}));
    } catch (const Error& e) {
      _exit(e.id() == "MU110" && no_worker_left() ? 0 : 3);
    }
    _exit(4);
  };
  EXPECT_EXIT(start_many(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace muster::data
