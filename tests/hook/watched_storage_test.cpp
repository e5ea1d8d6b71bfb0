#include "hook/watched_storage.h"

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"

namespace muster::hook {
namespace {

/// Fills the one storage from a copy of its values at the first access.
class Recorder : public StorageWatcher {
 public:
  void before_access(const StorageAccess& access) override {
    std::scoped_lock lock(mutex);
    if (refuse) throw UsageError("MU161", "refused");
    seen.push_back(std::string(access.op) + (access.writes ? "!" : ""));
    if (!storage->filled()) {
      ++fills;
      storage->fill(values.clone().storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, at::kCPU)));
    }
    ++running;
  }
  void after_access(int64_t) noexcept override { --running; }

  std::mutex mutex;
  WatchedStorage* storage = nullptr;
  at::Tensor values;
  std::vector<std::string> seen;
  std::atomic<int> running = 0;
  int fills = 0;
  bool refuse = false;
};

class StorageInterceptors : public testing::Test {
 protected:
  void SetUp() override {
    install_storage_interceptors();
    at::NoGradGuard no_grad;
    torch::manual_seed(3);
    plain = torch::nn::Linear(8, 4);
    linear = torch::nn::Linear(8, 4);
    recorder->values = torch::cat({plain->weight.reshape(-1), plain->bias}).detach();
    storage = std::make_unique<WatchedStorage>(recorder, 7, "unit 'fc'", recorder->values.nbytes(), at::kCPU);
    recorder->storage = storage.get();
    linear->weight.set_data(storage->view(0, {4, 8}, {8, 1}, at::kFloat));
    linear->bias.set_data(storage->view(32, {4}, {1}, at::kFloat));
  }

  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::unique_ptr<WatchedStorage> storage;
  torch::nn::Linear plain{nullptr}, linear{nullptr};
};

TEST_F(StorageInterceptors, ForwardAndBackwardFillWhatWasDropped) {
  const auto version = linear->weight._version();
  auto x = torch::randn({3, 8}, torch::requires_grad());
  auto want = plain(x).pow(2).sum();
  auto got = linear(x).pow(2).sum();
  EXPECT_TRUE(torch::equal(got, want));
  EXPECT_EQ(recorder->fills, 1);
  EXPECT_EQ(recorder->seen, (std::vector<std::string>{"aten::addmm", "aten::addmm"}));
  EXPECT_EQ(recorder->running, 0);

  storage->free();
  auto want_x = torch::autograd::grad({want}, {x, plain->weight, plain->bias});
  auto got_x = torch::autograd::grad({got}, {x, linear->weight, linear->bias});
  EXPECT_EQ(recorder->fills, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::equal(want_x[i], got_x[i])) << i;
    EXPECT_FALSE(has_key(got_x[i]));
  }
  EXPECT_EQ(linear->weight._version(), version);
}

TEST_F(StorageInterceptors, ViewsAndSizesNeedNoBytesAndKeepTheKey) {
  auto views = std::vector{linear->weight.t(),
                           linear->weight.view({-1}),
                           linear->weight[1],
                           linear->weight.detach(),
                           linear->weight.reshape({2, 16}),
                           linear->weight.contiguous(),
                           linear->weight.narrow(0, 1, 2)};
  for (auto& view : views) EXPECT_TRUE(has_key(view));
  EXPECT_EQ(torch::zeros_like(linear->weight).sum().item<float>(), 0);
  EXPECT_FALSE(has_key(torch::empty_like(linear->weight)));
  EXPECT_EQ(recorder->fills, 0);
  EXPECT_TRUE(recorder->seen.empty());
  // A view by its schema that must copy here.
  EXPECT_TRUE(torch::equal(linear->weight.t().contiguous(), plain->weight.t()));
  EXPECT_EQ(recorder->fills, 1);
  EXPECT_TRUE(torch::equal(linear->weight.to(torch::kDouble), plain->weight.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(torch::cat({linear->weight, plain->weight}), torch::cat({plain->weight, plain->weight})));
}

TEST_F(StorageInterceptors, WritesAreTold) {
  at::NoGradGuard no_grad;
  linear->weight.mul_(2);
  at::_foreach_add_({linear->bias}, 1.0);
  EXPECT_EQ(recorder->seen, (std::vector<std::string>{"aten::mul_!", "aten::_foreach_add_!"}));
  EXPECT_TRUE(torch::equal(linear->weight, plain->weight * 2));
}

TEST_F(StorageInterceptors, PointersOfDroppedMemoryThrow) {
  linear->weight.sum();
  EXPECT_EQ(linear->weight.const_data_ptr<float>()[1], plain->weight.const_data_ptr<float>()[1]);
  storage->free();
  EXPECT_THROW(linear->weight.const_data_ptr<float>(), c10::Error);
  EXPECT_THROW((linear->weight.accessor<float, 2>()), c10::Error);
}

TEST_F(StorageInterceptors, ARefusalComesOutOfTheOperatorAndLeavesItUsable) {
  auto x = torch::randn({3, 8}, torch::requires_grad());
  auto y = linear(x).sum();
  storage->free();
  recorder->refuse = true;
  EXPECT_THROW(linear(x), UsageError);
  EXPECT_THROW(y.backward({}, true), UsageError);
  recorder->refuse = false;
  EXPECT_EQ(recorder->running, 0);
  y.backward();
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST_F(StorageInterceptors, AnOperatorThatThrowsEndsItsAccess) {
  EXPECT_THROW(linear(torch::randn({3, 5})), c10::Error);
  EXPECT_EQ(recorder->running, 0);
}

TEST_F(StorageInterceptors, KeyOffMeansUnseen) {
  linear->weight.sum();
  recorder->seen.clear();
  set_key(linear->weight, false);
  linear->weight.sum();
  EXPECT_TRUE(recorder->seen.empty());
  set_key(linear->weight, true);
  linear->weight.sum();
  EXPECT_EQ(recorder->seen.size(), 1u);
}

TEST_F(StorageInterceptors, TensorsThatOutliveTheWatcherThrow) {  // MU166
  storage.reset();
  recorder.reset();
  try {
    linear(torch::randn({3, 8}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU166");
    EXPECT_NE(std::string(error.what()).find("unit 'fc'"), std::string::npos);
  }
  EXPECT_EQ(linear->weight.sizes(), (std::vector<int64_t>{4, 8}));
}

TEST_F(StorageInterceptors, ManyThreads) {
  auto x = torch::randn({3, 8});
  auto want = plain(x);
  std::vector<std::thread> threads;
  std::atomic<int> equal = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) equal += torch::equal(linear(x), want);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, 200);
  EXPECT_EQ(recorder->fills, 1);
}

TEST(StorageInterceptorsSwitch, TheVariableKeepsItOut) {  // MU160
  setenv(kStorageInterceptorsSwitch.variable, "1", 1);
  EXPECT_FALSE(kStorageInterceptorsSwitch.allows());
  try {
    install_storage_interceptors();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU160");
    EXPECT_NE(std::string(error.what()).find(kStorageInterceptorsSwitch.variable), std::string::npos);
  }
  unsetenv(kStorageInterceptorsSwitch.variable);
  EXPECT_TRUE(kStorageInterceptorsSwitch.allows());
  install_storage_interceptors();
}

}  // namespace
}  // namespace muster::hook
