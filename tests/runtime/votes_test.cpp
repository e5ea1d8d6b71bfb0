#include <algorithm>
#include <csignal>
#include <cstddef>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

/// A job that makes steps and votes.
struct Voters {
  explicit Voters(const AcceleratorOptions& options) : accelerator(options) {
    torch::nn::Linear net(3, 2);
    std::tie(model, optimizer) = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  }
  void step() {
    accelerator.backward(model(torch::ones({2, 3})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  bool is(int rank) const { return accelerator.process_index() == rank; }
  /// The votes, and how many collectives they took.
  std::pair<Votes, std::ptrdiff_t> votes() {
    auto& recorded = trace(accelerator);
    recorded.start();
    const auto agreed = agreed_votes(accelerator);
    recorded.stop();
    const auto spans = recorded.spans();
    return {agreed, std::ranges::count(spans, "collectives", &Trace::Span::track)};
  }

  Accelerator accelerator;
  Model<torch::nn::LinearImpl> model;
  Optimizer optimizer;
};

TEST(Votes, ComeWithTheGradients) {
  testing::as_ranks(2, [] {
    Voters job({.strategy = "ddp"});
    job.accelerator.catch_signals();
    const auto expect = [&](int signal, bool trigger) {
      const auto [votes, collectives] = job.votes();
      EXPECT_EQ(votes.signal, signal);
      EXPECT_EQ(votes.trigger, trigger);
      EXPECT_EQ(collectives, 0);
    };
    job.step();
    expect(0, false);
    if (job.is(1)) job.accelerator.set_trigger();
    job.step();
    expect(0, true);
    job.step();
    expect(0, false);  // it was cleared where it was set
    job.step();
    if (job.is(0)) job.accelerator.set_trigger();  // after the gradients
    if (job.is(1)) std::raise(SIGUSR1);
    expect(0, false);
    job.step();
    job.step();
    expect(SIGUSR1, true);
    if (job.is(0)) std::raise(SIGTERM);
    job.step();
    expect(SIGTERM, false);
  });
}

TEST(Votes, AreExchangedWhereNoGradientsWere) {
  for (const char* strategy : {"ddp", "fsdp"})
    testing::as_ranks(
        2,
        [&] {
          Voters job({.strategy = strategy});
          if (job.is(1)) job.accelerator.set_trigger();
          const auto [votes, collectives] = job.votes();
          EXPECT_TRUE(votes.trigger);
          EXPECT_EQ(votes.signal, 0);
          EXPECT_EQ(collectives, 1);
          EXPECT_FALSE(job.votes().first.trigger);
          job.step();
          EXPECT_FALSE(job.votes().first.trigger);
        },
        strategy);
}

TEST(Votes, OfOneRankAreItsOwn) {
  Voters job({});
  job.step();
  EXPECT_FALSE(agreed_votes(job.accelerator).trigger);
  job.accelerator.set_trigger();
  EXPECT_TRUE(agreed_votes(job.accelerator).trigger);
  EXPECT_FALSE(job.accelerator.check_trigger());
}

}  // namespace
}  // namespace muster
