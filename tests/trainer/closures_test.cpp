// Optimizers that call the closure of a step themselves.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster::closures {
namespace {

using testing::CountingModule, testing::quiet;
using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// Calls its closure so many times, and makes a step of SGD after each.
struct Repeating : torch::optim::SGD {
  Repeating(std::vector<torch::Tensor> parameters, int times) : SGD(std::move(parameters), 0.1), times(times) {}
  int times;
  torch::Tensor step(LossClosure closure) override {
    torch::Tensor loss;
    if (!closure) return SGD::step(nullptr);
    for (int i = 0; i < times; ++i) {
      {
        const torch::AutoGradMode with_grad(true);
        loss = closure();
      }
      SGD::step(nullptr);
    }
    return loss;
  }
};

MakeOptimizer lbfgs(const std::optional<std::string>& line_search = std::nullopt) {
  return [=](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::LBFGS>(
        std::move(parameters), torch::optim::LBFGSOptions(0.3).max_iter(4).line_search_fn(line_search));
  };
}
MakeOptimizer repeating(int times) {
  return
      [=](std::vector<torch::Tensor> parameters) { return std::make_shared<Repeating>(std::move(parameters), times); };
}

torch::Tensor first_weights() { return torch::linspace(0.1, 0.4, 4); }
torch::Tensor distance(const torch::Tensor& w, const torch::Tensor& batch) {
  return (torch::tanh(w * 3) * (batch + 1) - torch::linspace(-1, 1, 4)).square().mean();
}

/// Fits the weights, by an optimizer that may call its closure as often as it wants.
struct Fitted : CountingModule {
  explicit Fitted(MakeOptimizer make) : CountingModule(3), make(std::move(make)) { w.set_requires_grad(false); }
  MakeOptimizer make;
  torch::Tensor v = register_parameter("v", first_weights());
  int64_t evaluations = 0, before_steps = 0;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return ++evaluations, distance(v, batch); }
  void on_before_optimizer_step(ModuleOptimizer&) override { ++before_steps; }
  Optimizers configure_optimizers() override { return make({v}); }
};

struct FittedByHand : Fitted {
  explicit FittedByHand(MakeOptimizer make) : Fitted(std::move(make)) { automatic_optimization = false; }
  void training_step(torch::Tensor& batch, int64_t) {
    auto [optimizer] = optimizers<1>();
    optimizer.step([&, optimizer = optimizer] {
      optimizer.zero_grad();
      const auto loss = Fitted::training_step(batch, 0);
      manual_backward(loss);
      return loss;
    });
  }
};

/// What LibTorch's own loop makes of the weights; `clip`: the largest value of a gradient.
torch::Tensor fitted_without_trainer(const MakeOptimizer& make, const std::vector<torch::Tensor>& batches,
                                     double clip = 0) {
  const auto w = first_weights().requires_grad_();
  const auto optimizer = make({w});
  for (const auto& batch : batches)
    optimizer->step([&] {
      optimizer->zero_grad();
      const auto loss = distance(w, batch);
      loss.backward();
      if (clip > 0) w.mutable_grad().clamp_(-clip, clip);
      return loss;
    });
  return w.detach();
}

std::vector<torch::Tensor> three_batches() {
  return {torch::tensor({{0.f}}), torch::tensor({{1.f}}), torch::tensor({{2.f}})};
}

template <class Module>
void expect_fitted(const MakeOptimizer& make) {
  Module module(make);
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module);
  EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(make, three_batches()))) << module.v;
  EXPECT_FALSE(torch::equal(module.v, first_weights()));
  EXPECT_EQ(module.before_steps, module.evaluations);
  EXPECT_EQ(trainer.global_step(), 3);
}

TEST(Closures, AnOptimizerCallsItsClosureAsOftenAsItWants) {
  for (const auto& make : {lbfgs(), lbfgs("strong_wolfe"), repeating(1), repeating(3)}) {
    expect_fitted<Fitted>(make);
    expect_fitted<FittedByHand>(make);
  }
  Fitted searched(lbfgs());
  Trainer(quiet({.max_epochs = 1})).fit(searched);
  EXPECT_GT(searched.evaluations, 3);
}

TEST(Closures, EachCallOfAClosureClips) {
  constexpr double kMost = 0.01;
  Fitted module(lbfgs());
  Trainer(quiet({.gradient_clip_algorithm = "value", .gradient_clip_val = kMost, .max_epochs = 1})).fit(module);
  EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(lbfgs(), three_batches(), kMost))) << module.v;
}

TEST(Closures, AClosureThatIsNotCalledIsRefused) {  // MU590
  Fitted module(repeating(0));
  const auto message = testing::thrown([&] { Trainer(quiet({.max_epochs = 1})).fit(module); });
  EXPECT_EQ(message.rfind("MU590: ", 0), 0U) << message;
  EXPECT_NE(message.find("Repeating::step()"), message.npos) << message;
}

TEST(Closures, AClosureIsCalledOnceInAWindow) {  // MU591
  const auto fit = [](const MakeOptimizer& make) {
    Fitted module(make);
    return testing::thrown_id([&] { Trainer(quiet({.accumulate_grad_batches = 2, .max_epochs = 1})).fit(module); });
  };
  EXPECT_EQ(fit(lbfgs()), "MU591");
  EXPECT_EQ(fit(repeating(2)), "MU591");
  EXPECT_EQ(fit(repeating(1)), "no error");
}

TEST(Closures, UnderLossScalingNoOptimizerCallsItsClosureAgain) {  // MU146
  const auto options = quiet({.grad_scaler = {.init_scale = 1024}, .max_epochs = 1, .precision = "16-mixed"});
  Fitted searched(lbfgs()), stepped(repeating(3)), once(repeating(1));
  EXPECT_EQ(testing::thrown_id([&] { Trainer(options).fit(searched); }), "MU146");
  Trainer(options).fit(stepped);
  Trainer(options).fit(once);
  EXPECT_EQ(stepped.evaluations, 3);
  EXPECT_TRUE(torch::equal(stepped.v, once.v));
}

TEST(Closures, AClosureWithoutLossUpdatesNothing) {
  struct Missing : Fitted {
    using Fitted::Fitted;
    std::optional<torch::Tensor> training_step(torch::Tensor& batch, int64_t batch_idx) {
      if (batch_idx == 1) return std::nullopt;
      return Fitted::training_step(batch, batch_idx);
    }
  };
  for (const auto& make : {lbfgs(), repeating(2)}) {
    Missing module(make);
    Trainer trainer(quiet({.max_epochs = 1}));
    trainer.fit(module);
    auto batches = three_batches();
    batches.erase(batches.begin() + 1);
    EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(make, batches))) << module.v;
    EXPECT_EQ(trainer.global_step(), 2);
  }
}

TEST(Closures, RanksSearchTogether) {  // MU134
  testing::as_ranks(2, [] {
    // The mean of both ranks' losses, in one process.
    const auto w = first_weights().requires_grad_();
    const auto optimizer = lbfgs()({w});
    for (float i = 0; i < 4; i += 2)
      optimizer->step([&] {
        optimizer->zero_grad();
        const auto loss = (distance(w, torch::tensor({{i}})) + distance(w, torch::tensor({{i + 1}}))) / 2;
        loss.backward();
        return loss;
      });
    Fitted module(lbfgs());
    module.batches = 4;
    const Trainer keeps_the_meeting_place(quiet({}));
    Trainer trainer(quiet({.max_epochs = 1, .strategy = "ddp"}));
    trainer.fit(module);
    EXPECT_TRUE(torch::allclose(module.v, w, 1e-4, 1e-5)) << module.v << w;
    EXPECT_GT(module.evaluations, 2);
    for (const auto* strategy : {"zero1", "zero2", "fsdp"}) {
      Fitted sharded(lbfgs());
      Trainer by(quiet({.max_epochs = 1, .strategy = Strategy::parse(strategy)}));
      EXPECT_EQ(testing::thrown_id([&] { by.fit(sharded); }), "MU134") << strategy;
    }
  });
}

}  // namespace
}  // namespace muster::closures
