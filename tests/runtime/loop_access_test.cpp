#include "muster/runtime/detail/loop_access.h"

#include <csignal>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"

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

}  // namespace
}  // namespace muster
