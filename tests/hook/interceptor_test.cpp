#include "hook/interceptor.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hook/operator_override.h"
#include "hook/random_scope.h"
#include "hook/watched_storage.h"
#include "muster/base/error.h"

namespace muster::hook {
namespace {

// Free priorities: two of named operators, two of every operator on a thread, one on tensors.
constexpr auto kFirst = static_cast<Priority>(5), kSecond = static_cast<Priority>(6), kAll = static_cast<Priority>(12),
               kAllLater = static_cast<Priority>(13), kOnTensor = static_cast<Priority>(20);
constexpr DisableVariable kSwitch{"MUSTER_TEST_NO_INTERCEPTOR"};

thread_local std::string seen;

template <char Letter>
void note(Call& call) {
  seen += Letter;
  call.proceed();
}

/// The key may be included for the thread, so the tensors say.
void note_carried(Call& call) {
  for (const auto& value : call.arguments())
    if (value.isTensor() && has_key(value.toTensor())) seen += 't';
  call.proceed();
}

bool is_add(const c10::FunctionSchema& schema) { return schema.name() == "aten::add"; }
bool is_add_or_mul(const c10::FunctionSchema& schema) { return is_add(schema) || schema.name() == "aten::mul"; }

class Interceptors : public testing::Test {
 protected:
  void SetUp() override {
    // Not in their order: priorities decide.
    ASSERT_EQ(install({"all, later", kAllLater, nullptr, note<'d'>, kSwitch}), "");
    ASSERT_EQ(install({"second", kSecond, is_add_or_mul, note<'b'>, kSwitch}), "");
    ASSERT_EQ(install({"on tensor", kOnTensor, nullptr, note_carried, kSwitch}), "");
    ASSERT_EQ(install({"all", kAll, nullptr, note<'c'>, kSwitch}), "");
    ASSERT_EQ(install({"first", kFirst, is_add, note<'a'>, kSwitch}), "");
    seen.clear();
  }
  /// What the function's operators made the interceptors note.
  template <class Function>
  std::string noted(Function function) {
    seen.clear();
    function();
    return seen;
  }
  std::string noted() {
    return noted([&] { EXPECT_TRUE(torch::equal((one + one).detach(), two)); });
  }

  torch::Tensor one = torch::ones({2}), two = torch::full({2}, 2.0);
};

TEST_F(Interceptors, SeeAnOperatorInTheOrderOfPositions) {
  const InterceptorGuard late(kAllLater, true), second(kSecond, true), first(kFirst, true), all(kAll, true);
  EXPECT_EQ(noted([&] { one + one; }), "abcd");
  EXPECT_EQ(noted([&] { one* one; }), "bcd");  // "first" does not name it
  EXPECT_EQ(noted([&] { one - one; }), "cd");
  EXPECT_EQ(noted([&] { torch::empty({1}); }), "cd");  // an operator without tensors
  set_key(one, true);
  EXPECT_EQ(noted([&] { one + two; }), "abcdt");
}

TEST_F(Interceptors, OperatorsThatNobodyNamesFallThroughTheNamedKey) {
  const auto reaches = [](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "Tensor");
    return op.hasKernelForDispatchKey(kNamedOperatorsKey);
  };
  EXPECT_TRUE(reaches("aten::add"));
  EXPECT_FALSE(reaches("aten::sub"));
  const InterceptorGuard on({kFirst, kSecond}, true);
  EXPECT_EQ(noted([&] { one - one; }), "");
  EXPECT_EQ(noted([&] { one + one; }), "ab");
}

TEST_F(Interceptors, AreOffUnlessSwitchedOn) {
  EXPECT_EQ(noted(), "");
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kNamedOperatorsKey));
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kEveryOperatorKey));
}

TEST_F(Interceptors, ScopesNest) {
  const InterceptorGuard first(kFirst, true);
  EXPECT_EQ(noted(), "a");
  {
    const InterceptorGuard second(kSecond, true);
    EXPECT_EQ(noted(), "ab");
    {
      const InterceptorGuard without(kFirst, false), all(kAll, true);
      EXPECT_EQ(noted([&] { one + one; }), "bc");
      const InterceptorGuard again(kFirst, true);
      EXPECT_EQ(noted([&] { one + one; }), "abc");
    }
    EXPECT_EQ(noted(), "ab");
  }
  EXPECT_EQ(noted(), "a");
}

TEST_F(Interceptors, OnTensorsAreOnUnlessSwitchedOff) {
  set_key(one, true);
  EXPECT_EQ(noted([&] { one + two; }), "t");
  {
    const InterceptorGuard off(kOnTensor, false);
    EXPECT_EQ(noted([&] { one + two; }), "");
    const InterceptorGuard all(kAll, true);
    EXPECT_EQ(noted([&] { one + two; }), "c");
  }
  EXPECT_EQ(noted([&] { one + two; }), "t");
}

TEST_F(Interceptors, AnExceptionEndsAScope) {
  try {
    const InterceptorGuard on({kFirst, kAll}, true);
    one + torch::ones({3});  // throws in LibTorch
    FAIL();
  } catch (const c10::Error&) {}
  EXPECT_EQ(noted(), "");
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kEveryOperatorKey));
  const InterceptorGuard on(kFirst, true);
  EXPECT_EQ(noted(), "a");
}

TEST_F(Interceptors, BelongToTheirThread) {
  const InterceptorGuard on({kFirst, kAll}, true);
  std::vector<std::string> others(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < others.size(); ++i)
    threads.emplace_back([&, i] {
      auto sum = one + two;
      others[i] = seen;
      const InterceptorGuard second(kSecond, true);
      for (int k = 0; k < 50; ++k) sum = one + two;
      others[i] += seen;
    });
  for (auto& thread : threads) thread.join();
  for (const auto& other : others) EXPECT_EQ(other, std::string(50, 'b'));
  EXPECT_EQ(noted([&] { one + two; }), "ac");
}

TEST_F(Interceptors, GradientsFlowThroughThem) {
  const InterceptorGuard on({kFirst, kAll}, true);
  auto x = torch::ones({2}, torch::requires_grad());
  (x + one).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({2})));
}

TEST_F(Interceptors, ShareThePositionOfRandomScopes) {
  RandomScope scope;
  scope.seed(3);
  const auto drawn = torch::rand({4});
  const InterceptorGuard on({kFirst, kAll}, true);
  scope.seed(3);
  EXPECT_EQ(noted([&] { EXPECT_TRUE(torch::rand({4}).equal(drawn)); }).front(), 'c');
  const InterceptorGuard off(Priority::random_generator, false);
  scope.seed(3);
  EXPECT_FALSE(torch::rand({4}).equal(drawn));
}

/// Runs aten::mul on the watched tensor where it was asked to add.
struct Multiplying final : OperatorOverride {
  bool run(std::string_view op, size_t arguments, torch::jit::Stack& stack) override {
    if (op != "aten::add") return false;
    auto result = torch::jit::last(stack, arguments)[1].toTensor() * 2;
    torch::jit::drop(stack, arguments);
    torch::jit::push(stack, std::move(result));
    return true;
  }
};

struct Filling final : StorageWatcher {
  void before_access(const StorageAccess& access) override {
    seen += std::string(access.op) + " ";
    storage->fill(
        torch::full({2}, 3.0f).storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, at::kCPU)));
  }
  void after_access(int64_t) noexcept override { storage->free(); }
  WatchedStorage* storage = nullptr;
};

TEST(TwoInterceptors, OnOneOperatorWorkTogether) {
  install_storage_interceptors();
  const InterceptorGuard others(kOnTensor, false);
  auto marked = torch::ones({2});
  mark_for_override(marked, std::make_shared<Multiplying>());
  const auto watcher = std::make_shared<Filling>();
  WatchedStorage storage(watcher, 0, "unit 'fc'", 8, at::kCPU);
  watcher->storage = &storage;
  const auto watched = storage.view(0, {2}, {1}, at::kFloat);
  seen.clear();
  // The sum is taken over; the product, within the override, finds the values of the watched tensor.
  EXPECT_TRUE(torch::equal(marked + watched, torch::full({2}, 6.0)));
  EXPECT_EQ(seen, "aten::mul ");
  EXPECT_TRUE(torch::equal(marked - watched, torch::full({2}, -2.0)));  // left to LibTorch
  EXPECT_EQ(seen, "aten::mul aten::sub ");
}

std::string refusal_of(const Interceptor& interceptor) {
  try {
    return install(interceptor);
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU315");
    return error.what();
  }
}

TEST_F(Interceptors, RefuseAPriorityThatDoesNotSuit) {  // MU315
  EXPECT_NE(refusal_of({"other", kFirst, is_add, note<'x'>, kSwitch}).find("'first' has it"), std::string::npos);
  EXPECT_NE(refusal_of({"other", static_cast<Priority>(7), nullptr, note<'x'>, kSwitch}).find("say in `takes`"),
            std::string::npos);
  EXPECT_NE(refusal_of({"other", static_cast<Priority>(14), is_add, note<'x'>, kSwitch}).find("every operator"),
            std::string::npos);
  EXPECT_EQ(refusal_of({"first", kFirst, is_add, note<'a'>, kSwitch}), "");  // again: nothing happens
}

TEST_F(Interceptors, AreKeptOutByTheirVariable) {
  setenv(kSwitch.variable, "1", 1);
  EXPECT_NE(refusal_of({"other", static_cast<Priority>(7), is_add, note<'x'>, kSwitch}).find(kSwitch.variable),
            std::string::npos);
  for (const char* off : {"0", "False", "no"}) {
    setenv(kSwitch.variable, off, 1);
    EXPECT_TRUE(kSwitch.allows()) << off;
  }
  unsetenv(kSwitch.variable);
  EXPECT_TRUE(kSwitch.allows());
  const InterceptorGuard absent(static_cast<Priority>(7), true);  // not installed: without effect
  EXPECT_EQ(noted(), "");
}

}  // namespace
}  // namespace muster::hook
