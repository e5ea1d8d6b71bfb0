#include "muster/runtime/loop_access.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

TEST(LoopAccess, GivesTheTraceOfTheRuntime) {
  Fabric fabric;
  auto& recorded = trace(fabric);
  recorded.start();
  { TraceScope span(trace(fabric), "validation"); }
  recorded.stop();
  ASSERT_EQ(recorded.spans().size(), 1U);
  EXPECT_EQ(recorded.spans()[0].name, "validation");
}

TEST(LoopAccess, KeepsRandomStates) {
  Accelerator accelerator;
  torch::manual_seed(3);
  const auto states = random_states(accelerator);
  const auto first = torch::rand({3});
  set_random_states(accelerator, states);
  {
    const KeptRandomStates kept(accelerator);
    EXPECT_TRUE(torch::equal(torch::rand({3}), first));
    torch::manual_seed(4);
    torch::rand({7});
  }
  EXPECT_TRUE(torch::equal(torch::rand({3}), first));
  EXPECT_EQ(testing::thrown_id([&] { set_random_states(accelerator, State::Map{}); }), "MU209");
}

TEST(LoopAccess, CatchesSignalsForAWhile) {
  static int handled = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++handled; });
  Accelerator accelerator;
  {
    CaughtSignals caught(accelerator);
    std::raise(SIGUSR1);
    EXPECT_EQ(handled, 1);
    EXPECT_EQ(caught.received(), SIGUSR1);
    EXPECT_EQ(agreed_votes(accelerator).signal, SIGUSR1);
    caught.forget(SIGUSR1);
    EXPECT_EQ(agreed_votes(accelerator).signal, 0);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(handled, 2);
  EXPECT_EQ(agreed_votes(accelerator).signal, 0);
  std::signal(SIGUSR1, before);
}

/// What ranks say of a schedule of so many steps, in two epochs of eight batches of all ranks. The loop is a plain one,
/// or one that says how many epochs there are.
std::string said_of_schedule(int64_t total, bool says_epochs, int64_t breaks_after = -1) {
  Accelerator accelerator;
  const torch::nn::Linear net(4, 3);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ::testing::internal::CaptureStderr();
  {
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, sgd, OneCycleLR(sgd, {.max_lr = 0.1, .total_steps = total}),
                            DataLoader([](int64_t i) { return torch::full({4}, static_cast<double>(i)); }, 8));
    int64_t steps = 0;
    const auto epoch = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler, &loader = loader] {
      for (auto& batch : loader) {
        if (steps++ == breaks_after) break;
        optimizer.zero_grad();
        accelerator.backward(model(batch.to(torch::kFloat)).sum());
        optimizer.step();
        scheduler.step();
      }
    };
    if (says_epochs)
      for ([[maybe_unused]] const auto e : accelerator.epochs(2)) epoch();
    else
      for (int e = 0; e < 2; ++e) epoch();
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(LoopAccess, NamesAScheduleOfAnotherLength) {
  const auto named = [](const std::string& said) { return said.find("OneCycleLR was made for 16 steps") != said.npos; };
  EXPECT_FALSE(named(said_of_schedule(16, true)));
  EXPECT_FALSE(named(said_of_schedule(16, false)));
  EXPECT_FALSE(named(said_of_schedule(16, false, 5)));  // a loop may break off
  EXPECT_EQ(said_of_schedule(12, true, 12).find("was made for"), std::string::npos);
  EXPECT_NE(said_of_schedule(8, true, 8).find("OneCycleLR was made for 8 steps, and this training has 16;"),
            std::string::npos);
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    const bool speaks = keeps_the_meeting_place.is_main_process();
    EXPECT_EQ(named(said_of_schedule(16, true)), speaks);
    EXPECT_EQ(named(said_of_schedule(16, false)), speaks);
    EXPECT_EQ(said_of_schedule(8, true).find("was made for"), std::string::npos);
    EXPECT_EQ(said_of_schedule(8, false).find("was made for"), std::string::npos);
  });
}

}  // namespace
}  // namespace muster
