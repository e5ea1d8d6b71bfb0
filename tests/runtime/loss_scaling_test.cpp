#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

using json = nlohmann::json;

constexpr GradScalerOptions kScaling{.growth_interval = 3, .init_scale = 1024};

struct SmallImpl : torch::nn::Module {
  SmallImpl() {
    const torch::NoGradGuard no_grad;
    int i = 0;
    for (auto& parameter : parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kFloat) * 1.3 + i++).view_as(parameter) * 0.5);
  }
  torch::Tensor forward(torch::Tensor x) { return b(torch::relu(a(x))); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 8))}, b{register_module("b", torch::nn::Linear(8, 1))};
};
TORCH_MODULE(Small);

/// As in tests/precision/grad_scaler_cases.py.
std::pair<torch::Tensor, torch::Tensor> inputs(int step, int rank) {
  auto x = torch::cos(torch::arange(12, torch::kFloat) * 0.7 + step + 3 * rank).view({3, 4});
  if (rank == 1 && (step == 1 || step == 4 || step == 5)) x = x * 60000.0;
  return {x, torch::sin(torch::arange(3, torch::kFloat) + step).view({3, 1})};
}

void expect_the_training_of_pytorch(Strategy strategy) {
  const auto cases =
      json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/precision/grad_scaler_cases.json"));
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16", .strategy = strategy});
  Small net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
  int step = 0, skipped = 0;
  for (const auto& row : cases.at("training")) {
    SCOPED_TRACE(row.dump());
    const auto [x, y] = inputs(step++, accelerator.process_index());
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(x), y);
    accelerator.backward(loss);
    optimizer.step();
    if (const auto& expected = row.at("losses")[accelerator.process_index()]; !expected.is_null()) {
      EXPECT_NEAR(loss.item<double>(), expected.get<double>(), 2e-3 * std::abs(expected.get<double>()) + 1e-4);
    }
    EXPECT_EQ(optimizer.step_was_skipped(), row.at("skipped").get<bool>());
    EXPECT_EQ(accelerator.optimizer_step_was_skipped(), row.at("skipped").get<bool>());
    EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{row.at("growth_tracker"), row.at("scale")}));
    skipped += optimizer.step_was_skipped();
  }
  EXPECT_EQ(skipped, 3);
}

TEST(LossScaling, TwoRanksSkipTheStepsThatPyTorchSkips) {
  testing::as_ranks(2, [] { expect_the_training_of_pytorch("ddp"); });
}

TEST(LossScaling, ShardedRanksAgreeOnWhatOneOfThemSaw) {
  testing::as_ranks(2, [] { expect_the_training_of_pytorch("fsdp"); });
}

TEST(LossScaling, UnscalesOnceBeforeClipping) {
  Accelerator plain, scaled({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small one, other;
  auto [model, optimizer] = plain.prepare(one, torch::optim::SGD(one->parameters(), 0.1));
  auto [half_model, half_optimizer] = scaled.prepare(other, torch::optim::SGD(other->parameters(), 0.1));
  const auto [x, y] = inputs(0, 0);
  plain.backward(torch::mse_loss(model(x), y));
  scaled.backward(torch::mse_loss(half_model(x), y));
  const auto raw = other->a->weight.grad().abs().max().item<float>();
  const double norm = plain.clip_grad_norm_(model, 0.1);
  EXPECT_NEAR(scaled.clip_grad_norm_(half_model, 0.1), norm, 0.01 * norm);
  EXPECT_NEAR(scaled.clip_grad_norm_(half_model, 0.1), 0.1, 0.001);  // of what is clipped already
  EXPECT_LT(other->a->weight.grad().abs().max().item<float>(), raw / 100);
  scaled.unscale_gradients();
  EXPECT_EQ(testing::difference(other->a->weight.grad(), one->a->weight.grad(), 0.02, 1e-3), "");
  optimizer.step();
  half_optimizer.step();
  EXPECT_EQ(testing::difference(other->a->weight.detach(), one->a->weight.detach(), 0.01, 1e-4), "");
}

TEST(LossScaling, EveryOptimizerHasAScaleOfItsOwn) {
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small left, right;
  auto [a, b, first, second] = accelerator.prepare(left, right, torch::optim::SGD(left->parameters(), 0.1),
                                                   torch::optim::SGD(right->parameters(), 0.1));
  const auto [x, y] = inputs(0, 0);
  accelerator.backward(torch::mse_loss(a(x), y) * std::numeric_limits<float>::infinity());
  first.step();
  EXPECT_TRUE(first.step_was_skipped());
  first.zero_grad();
  accelerator.backward(torch::mse_loss(b(x), y));  // scaled by the smaller of the two
  second.step();
  EXPECT_FALSE(second.step_was_skipped());
  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());  // one of them was
  EXPECT_EQ(*first.scaler_state(), (GradScalerState{0, 512}));
  EXPECT_EQ(*second.scaler_state(), (GradScalerState{0, 1024}));
}

TEST(LossScaling, GradientsOfTwoScalesAreBroughtTogether) {
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small left, right;
  auto [a, b, first, second] = accelerator.prepare(left, right, torch::optim::SGD(left->parameters(), 0.1),
                                                   torch::optim::SGD(right->parameters(), 0.1));
  const auto [x, y] = inputs(0, 0);
  accelerator.backward(torch::mse_loss(b(x), y));
  const auto once = right->a->weight.grad() / 1024;
  accelerator.backward(torch::mse_loss(a(x), y) * std::numeric_limits<float>::infinity());
  first.step();  // its scale halves between the two losses of the other
  accelerator.backward(torch::mse_loss(b(x), y));
  accelerator.unscale_gradients(second);
  EXPECT_EQ(testing::difference(right->a->weight.grad(), once * 2, 0.01, 1e-4), "");
}

TEST(LossScaling, SchedulersWaitForASkippedStep) {
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, torch::optim::StepLR(sgd, 1, 0.5));
  const auto [x, y] = inputs(0, 0);
  auto turn = [&, m = model, o = optimizer, s = scheduler](float factor) mutable {
    o.zero_grad();
    accelerator.backward(torch::mse_loss(m(x), y) * factor);
    o.step();
    s.step();
    return sgd.param_groups()[0].options().get_lr();
  };
  turn(1);
  EXPECT_DOUBLE_EQ(turn(1), 0.5);  // LibTorch's first step leaves the rate
  EXPECT_DOUBLE_EQ(turn(std::numeric_limits<float>::infinity()), 0.5);
  EXPECT_DOUBLE_EQ(turn(1), 0.25);
}

TEST(LossScaling, ItsStateIsSavedAndLoaded) {
  Accelerator scaled({.mixed_precision = "fp16"}), plain;
  Small net, other;
  auto optimizer = scaled.prepare(torch::optim::SGD(net->parameters(), 0.1));
  optimizer.load_scaler_state({7, 128});
  EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{7, 128}));
  auto without = plain.prepare(torch::optim::SGD(other->parameters(), 0.1));
  EXPECT_FALSE(without.scaler_state());
  EXPECT_EQ(testing::thrown_id([&] { without.load_scaler_state({7, 128}); }), "MU147");
}

/// Backward of a loss whose gradients overflow if `bad`.
void backward_of(Accelerator& accelerator, Model<SmallImpl>& model, bool bad) {
  const auto [x, y] = inputs(0, accelerator.process_index());
  accelerator.backward(torch::mse_loss(model(x), y) * (bad ? std::numeric_limits<float>::infinity() : 1.0F));
}

double scale_of(const Optimizer& optimizer) { return optimizer.scaler_state()->scale; }

TEST(LossScaling, GradientsThatAProgramGivesUpShrinkTheScaleAndSkipNoLaterStep) {
  for (const auto* strategy : {"auto", "ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    testing::as_ranks(
        std::string(strategy) == "auto" ? 1 : 2,
        [strategy] {
          Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16", .strategy = strategy});
          Small net;
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
          const bool last = accelerator.process_index() == accelerator.num_processes() - 1;
          for (int turn = 1; turn <= 2; ++turn) {
            backward_of(accelerator, model, /*bad=*/last);
            EXPECT_FALSE(std::isfinite(static_cast<double>(accelerator.clip_grad_norm_(model, 1.0))));
            optimizer.zero_grad();
            EXPECT_EQ(scale_of(optimizer), 1024 / std::pow(2, turn));
          }
          backward_of(accelerator, model, false);
          EXPECT_TRUE(std::isfinite(static_cast<double>(accelerator.clip_grad_norm_(model, 1.0))));
          optimizer.step();
          EXPECT_FALSE(optimizer.step_was_skipped());
          EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{1, 256}));
        },
        strategy);
  }
}

TEST(LossScaling, AStepWithoutANewBackwardChecksTheGradientsAgain) {
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  backward_of(accelerator, model, true);
  for (int i = 0; i < 2; ++i) {
    optimizer.step();
    EXPECT_TRUE(optimizer.step_was_skipped());
  }
  EXPECT_TRUE(net->a->weight.isfinite().all().item<bool>());
}

TEST(LossScaling, AnOverflowIsSavedBetweenClippingAndTheStep) {
  const testing::InheritedFolder folder;
  for (const auto* strategy : {"auto", "ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    testing::as_ranks(
        std::string(strategy) == "auto" ? 1 : 2,
        [&] {
          for (const std::string way : {"unscaled", "clipped by value", "asked to skip"}) {
            SCOPED_TRACE(way);
            const bool scaled = way != "asked to skip";
            const AcceleratorOptions options{.grad_scaler = kScaling,
                                             .mixed_precision = scaled ? Precision("fp16") : Precision("no"),
                                             .strategy = strategy};
            const auto state = folder.path() / strategy / way;
            {
              Accelerator accelerator(options);
              Small net;
              auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
              backward_of(accelerator, model, /*bad=*/accelerator.process_index() == accelerator.num_processes() - 1);
              if (way == "unscaled") accelerator.unscale_gradients();
              if (way == "clipped by value") accelerator.clip_grad_value_(model, 1.0);
              if (!scaled) accelerator.clip_grad_norm_(model, 1.0, {.skip_if_nonfinite = true});
              accelerator.save_state(state, {.durability = Durability::none});
            }
            Accelerator accelerator(options);
            Small net;
            auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
            accelerator.load_state(state);
            optimizer.step();
            EXPECT_TRUE(optimizer.step_was_skipped());
            EXPECT_EQ(scaled ? scale_of(optimizer) : 512, 512);
            EXPECT_TRUE(model(inputs(0, 0).first).isfinite().all().item<bool>());
          }
        },
        strategy);
  }
}

TEST(LossScaling, RanksOfLocalSgdSkipTogether) {
  testing::as_ranks(2, [] {
    for (const std::string way : {"norm", "value", "skip"}) {
      SCOPED_TRACE(way);
      const bool scaled = way != "skip";
      Accelerator accelerator({.grad_scaler = kScaling,
                               .mixed_precision = scaled ? Precision("fp16") : Precision("no"),
                               .strategy = "ddp"});
      Small net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, torch::optim::StepLR(sgd, 1, 0.5));
      {
        auto local = accelerator.local_sgd(model, {.local_sgd_steps = 3});
        for (int step = 0; step < 3; ++step) {
          backward_of(accelerator, model, /*bad=*/step == 1 && accelerator.process_index() == 1);
          if (way == "value") accelerator.clip_grad_value_(model, 1.0);
          else accelerator.clip_grad_norm_(model, 1.0, {.skip_if_nonfinite = !scaled});
          optimizer.step();
          EXPECT_EQ(optimizer.step_was_skipped(), step == 1);
          scheduler.step();
          optimizer.zero_grad();
          local.step();
        }
      }
      EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
      EXPECT_EQ(scaled ? scale_of(optimizer) : 512, 512);
    }
  });
}

TEST(LossScaling, UnscalingAfterAStepFindsNothingAgain) {
  Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16"});
  Small left, right;
  auto [a, b, first, second] = accelerator.prepare(left, right, torch::optim::SGD(left->parameters(), 0.1),
                                                   torch::optim::SGD(right->parameters(), 0.1));
  const auto [x, y] = inputs(0, 0);
  accelerator.backward((torch::mse_loss(a(x), y) + torch::mse_loss(b(x), y)) * std::numeric_limits<float>::infinity());
  for (auto* optimizer : {&first, &second}) {
    accelerator.unscale_gradients();
    accelerator.clip_grad_norm_(a, 1.0);
    optimizer->step();
    EXPECT_TRUE(optimizer->step_was_skipped());
  }
  first.zero_grad();
  second.zero_grad();
  EXPECT_EQ(scale_of(first), 512);
  EXPECT_EQ(scale_of(second), 512);
}

TEST(LossScaling, ARankWithoutALossUnscalesAlone) {
  const auto of = [](const std::string& name) {
    return name == "ddp" ? Strategy(DDP{.find_unused_parameters = true}) : Strategy("zero2");
  };
  for (const auto* strategy : {"ddp", "zero2"})
    testing::as_ranks(
        2,
        [&] {
          Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16", .strategy = of(strategy)});
          Small left, right;
          auto [a, b, first, second] = accelerator.prepare(left, right, torch::optim::SGD(left->parameters(), 0.1),
                                                           torch::optim::SGD(right->parameters(), 0.1));
          const auto [x, y] = inputs(0, accelerator.process_index());
          accelerator.backward(torch::mse_loss(a(x), y) + torch::mse_loss(b(x), y));
          first.step();
          second.step();
          first.zero_grad();
          second.zero_grad();
          if (accelerator.process_index() == 0)
            accelerator.backward(torch::mse_loss(a(x), y) + torch::mse_loss(b(x), y));
          accelerator.unscale_gradients();
          first.step();
          second.step();
          EXPECT_FALSE(first.step_was_skipped());
          EXPECT_EQ(*second.scaler_state(), (GradScalerState{2, 1024}));
        },
        strategy);
}

TEST(LossScaling, AnOverflowThatIsNotReducedYetSaysNothing) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.grad_scaler = kScaling, .mixed_precision = "fp16", .strategy = "ddp"});
    Small net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    {
      const auto scope = accelerator.no_sync(model);
      backward_of(accelerator, model, /*bad=*/accelerator.process_index() == 1);
      accelerator.unscale_gradients();
    }
    optimizer.zero_grad();
    backward_of(accelerator, model, false);
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{1, 1024}));
  });
}

TEST(LossScaling, ClosuresAreRefused) {
  Accelerator accelerator({.mixed_precision = "fp16"});
  Small net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::LBFGS(net->parameters()));
  EXPECT_EQ(testing::thrown_id([&, o = optimizer]() mutable { o.step([] { return torch::zeros({}); }); }), "MU146");
}

struct RecurrentImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return head(std::get<0>(lstm(x))); }
  torch::nn::LSTM lstm{register_module("lstm", torch::nn::LSTM(4, 8))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(8, 1))};
};
TORCH_MODULE(Recurrent);

TEST(HalfOnCpu, LstmRunsInFloatAndTheRestInHalf) {
  Accelerator accelerator({.mixed_precision = "fp16"});
  EXPECT_NE(accelerator.plan().find("16-mixed on a CPU emulates float16"), std::string::npos) << accelerator.plan();
  auto model = accelerator.prepare(Recurrent());
  const auto dtypes = model.run(
      [](RecurrentImpl& net, torch::Tensor x) {
        const auto hidden = std::get<0>(net.lstm(x));
        return std::make_tuple(torch::tensor(hidden.scalar_type() == torch::kFloat),
                               torch::tensor(net.head(hidden).scalar_type() == torch::kHalf));
      },
      torch::ones({3, 2, 4}));
  EXPECT_TRUE(std::get<0>(dtypes).item<bool>());
  EXPECT_TRUE(std::get<1>(dtypes).item<bool>());
  accelerator.backward(model(torch::ones({3, 2, 4})).sum());
  EXPECT_TRUE(model->lstm->parameters()[0].grad().defined());
  Accelerator plain;  // the same kernel stays out of the way
  EXPECT_EQ(plain.prepare(Recurrent())(torch::ones({3, 2, 4})).scalar_type(), torch::kFloat);
}

TEST(HalfOnCpu, LstmTrainsInBfloat16OnEveryProcessor) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(Recurrent());
  accelerator.backward(model(torch::ones({3, 2, 4})).sum());
  EXPECT_TRUE(model->lstm->parameters()[0].grad().defined());
}

TEST(HalfOnCpu, TrueHalfCastsParametersAndKeepsNamedModules) {
  Fabric fabric({.fp32_modules = {"b"}, .precision = "16-true"});
  auto model = fabric.setup(Small());
  EXPECT_EQ(model->a->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(model->b->weight.scalar_type(), torch::kFloat);
  const auto out = model.run(
      [](SmallImpl& net, torch::Tensor x) {
        return in_fp32([&](torch::Tensor hidden) { return net.b(hidden); }, torch::relu(net.a(x)));
      },
      torch::ones({3, 4}));
  EXPECT_EQ(out.scalar_type(), torch::kFloat);
  fabric.backward(out.sum());
  EXPECT_EQ(model->a->weight.grad().scalar_type(), torch::kHalf);
}

}  // namespace
}  // namespace muster
