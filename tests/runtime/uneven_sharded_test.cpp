#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/fabric.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

constexpr int64_t kWidth = 64;

/// Two blocks, each a unit, between layers of the root; a buffer, a 0-dim parameter, and one that is frozen. Shards are
/// multiples of 512 float64 elements, so it is wide enough for every rank to hold some of each unit.
struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(at::ScalarType dtype = at::kDouble) {
    for (int i = 0; i < 2; ++i) blocks->push_back(torch::nn::Linear(kWidth, kWidth));
    frozen.requires_grad_(false);
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = torch::tanh(in(x));
    for (const auto& block : *blocks) y = y + torch::tanh(block->as<torch::nn::Linear>()->forward(y)) * frozen;
    if (is_training()) seen += x.sum().detach();
    return out(y) * gain;
  }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(3, kWidth))};
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(kWidth, 1))};
  at::Tensor gain = register_parameter("gain", torch::full({}, 1.25));
  at::Tensor frozen = register_parameter("frozen", torch::full({kWidth}, 0.5));
  at::Tensor seen = register_buffer("seen", torch::zeros({}));
};
TORCH_MODULE(Blocks);

Blocks seeded_blocks(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(8);
  return Blocks(dtype);
}

using Sine = std::tuple<at::Tensor, at::Tensor>;

std::vector<Sine> sines(int64_t count, at::ScalarType dtype = at::kDouble) {
  std::vector<Sine> all;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = torch::sin(torch::arange(3, dtype) * (i + 1) + i);
    all.emplace_back(x, x.sum().cos().view({1}));
  }
  return all;
}

enum class Clip { none, norm, value };

/// A training of two epochs.
struct Course {
  int64_t samples = 18;
  int window = 1;  ///< micro-batches
  Clip clip = Clip::none;
  bool clears_by_module = false;
};

torch::optim::AdamW adam_of(Blocks& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

/// One process: each step over the samples of one window of all ranks.
std::vector<at::Tensor> trained_alone(const Course& course, int world) {
  auto net = seeded_blocks();
  auto adam = adam_of(net);
  ExponentialLR schedule(adam, {.gamma = 0.9});
  const auto data = sines(course.samples);
  const int64_t size = 2 * course.window * world;
  std::vector<at::Tensor> norms;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (int64_t begin = 0; begin < course.samples; begin += size) {
      std::vector<at::Tensor> x, y;
      for (int64_t i = begin; i < std::min(course.samples, begin + size); ++i) {
        x.push_back(std::get<0>(data[i]));
        y.push_back(std::get<1>(data[i]));
      }
      adam.zero_grad();
      torch::mse_loss(net(torch::stack(x)), torch::stack(y)).backward();
      if (course.clip == Clip::norm) torch::nn::utils::clip_grad_norm_(net->parameters(), 0.3);
      if (course.clip == Clip::value) torch::nn::utils::clip_grad_value_(net->parameters(), 0.05);
      adam.step();
      schedule.step();
    }
  return net->parameters();
}

std::vector<at::Tensor> full_values(const auto& model) {
  std::vector<at::Tensor> values;
  for (auto& [name, value] : model.prepared()->managed->full_state(false))
    if (name != "seen") values.push_back(value);
  return values;
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(testing::difference(found[i].detach(), expected[i].detach(), tolerance, tolerance), "") << "tensor " << i;
}

void expect_one_process(const Strategy& strategy, const Course& course) {
  Accelerator accelerator({.strategy = strategy});
  accelerator.set_gradient_accumulation_steps(course.window);
  auto net = seeded_blocks();
  auto adam = adam_of(net);
  auto [model, optimizer, scheduler, batches] =
      accelerator.prepare(net, adam, ExponentialLR(adam, {.gamma = 0.9}),
                          DataLoader(sines(course.samples), {.batch_size = 2, .even_batches = false}));
  for (int epoch = 0; epoch < 2; ++epoch)
    accelerator.join_uneven_inputs(
        [&, model = model, optimizer = optimizer, scheduler = scheduler, batches = batches]() mutable {
          for (auto& [x, y] : batches) {
            auto window = accelerator.accumulate(model);
            if (course.clears_by_module) net->zero_grad();
            accelerator.backward(torch::mse_loss(model(x), y));
            if (course.clip == Clip::norm) accelerator.clip_grad_norm_(model, 0.3);
            if (course.clip == Clip::value) accelerator.clip_grad_value_(net->parameters(), 0.05);
            optimizer.step();
            scheduler.step();
            if (!course.clears_by_module) optimizer.zero_grad();
          }
        });
  expect_close(full_values(model), trained_alone(course, accelerator.num_processes()), 1e-11);
  EXPECT_EQ(scheduler.inner()->last_epoch(),
            2 * ((course.samples + 2 * course.window * accelerator.num_processes() - 1) /
                 (2 * course.window * accelerator.num_processes())));
  const auto seen = accelerator.gather(net->seen.view({1}));
  EXPECT_EQ(testing::difference_in_bits(seen.narrow(0, 0, 1).expand_as(seen).contiguous(), seen), "");
  const auto rates = accelerator.gather(torch::tensor({adam.param_groups()[0].options().get_lr()}, at::kDouble));
  EXPECT_EQ(testing::difference_in_bits(rates[0], rates[-1]), "");
}

/// Every way in which models are sharded.
std::vector<std::pair<std::string, Strategy>> ways(int world) {
  std::vector<std::pair<std::string, Strategy>> all{
      {"ddp", "ddp"}, {"zero1", "zero1"}, {"zero2", "zero2"}, {"fsdp", "fsdp"}};
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full})
    all.emplace_back("gathered, stage " + std::to_string(static_cast<int>(stage)),
                     FSDP{.one_copy_per_host = false, .stage = stage});
  all.emplace_back("kept after forward", FSDP{.one_copy_per_host = false, .reshard_after_forward = false});
  if (world == 4) {
    all.emplace_back("post-forward shards", FSDP{.one_copy_per_host = false, .reshard_after_forward = 2});
    all.emplace_back("hybrid", FSDP{.one_copy_per_host = false, .shard_group_size = 2});
    all.emplace_back("hybrid with one copy", FSDP{.shard_group_size = 2});
  }
  return all;
}

/// All settings in the full tests, else every fifth.
TEST(UnevenSharded, EqualsOneProcessUnderEveryStrategy) {
  const bool full = std::getenv("MUSTER_TEST_FULL") != nullptr;
  for (const int world : {2, 3, 4})
    testing::as_ranks(
        world,
        [=] {
          int setting = 0;
          for (const auto& [name, strategy] : ways(world))
            for (const auto clip : {Clip::none, Clip::norm, Clip::value})
              for (const int window : {1, 3})
                for (const int64_t rest : {1, 2 * world - 1})
                  for (const bool clears_by_module : {false, true}) {
                    if (++setting % 5 != 0 && !full) continue;
                    if (clears_by_module && window > 1) continue;
                    SCOPED_TRACE(name + ", setting " + std::to_string(setting));
                    expect_one_process(strategy, {.samples = 4 * world + rest,
                                                  .window = window,
                                                  .clip = clip,
                                                  .clears_by_module = clears_by_module});
                  }
        },
        std::to_string(world));
}

TEST(UnevenSharded, ARankMayHaveNoBatchAtAll) {
  testing::as_ranks(3, [] {
    for (const auto& [name, strategy] : ways(3)) {
      SCOPED_TRACE(name);
      expect_one_process(strategy, {.samples = 1});
      expect_one_process(strategy, {.samples = 3, .window = 2, .clip = Clip::norm});
    }
  });
}

/// Ranks end many steps apart, each after a forward without a backward. Returns the parameters, then the buffer.
std::vector<at::Tensor> trained_apart(const Strategy& strategy, bool sets_to_none) {
  Accelerator accelerator({.strategy = strategy});
  const int rank = accelerator.process_index();
  auto net = seeded_blocks();
  auto adam = adam_of(net);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, adam, OneCycleLR(adam, {.max_lr = 0.1, .total_steps = 20}));
  const auto inputs = [&](int step) { return torch::cos(torch::arange(6, at::kDouble).view({2, 3}) * step + rank); };
  accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer, scheduler = scheduler]() mutable {
    for (int step = 0; step < 1 + 3 * (rank % 2); ++step) {
      optimizer.zero_grad(sets_to_none);
      accelerator.backward(model(inputs(step)).pow(2).sum());
      EXPECT_GT(static_cast<double>(model.grad_norm()), 0);
      accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
      scheduler.step();
      EXPECT_TRUE(model(inputs(9)).requires_grad());
    }
  });
  optimizer.zero_grad(sets_to_none);
  accelerator.backward(model(inputs(5)).pow(2).sum());
  optimizer.step();
  auto values = full_values(model);
  values.push_back(net->seen);
  return values;
}

TEST(UnevenSharded, RanksMayEndManyStepsApart) {
  for (const int world : {2, 4})
    testing::as_ranks(
        world,
        [world] {
          for (const bool sets_to_none : {true, false}) {
            const auto expected = trained_apart("ddp", sets_to_none);
            for (const auto& [name, strategy] : ways(world)) {
              SCOPED_TRACE(name + (sets_to_none ? "" : ", zeros"));
              expect_close(trained_apart(strategy, sets_to_none), expected, 1e-11);
            }
          }
        },
        std::to_string(world));
}

TEST(UnevenSharded, ItsDivisorMayBeTheNumberOfRanksWithBatches) {
  testing::as_ranks(2, [] {
    for (const auto& [name, strategy] : ways(2))
      for (const double predivide : {0.0, 1.0}) {
        if (predivide > 0 && name != "fsdp") continue;
        SCOPED_TRACE(name + " " + std::to_string(predivide));
        Accelerator accelerator({.strategy = predivide > 0 ? Strategy(FSDP{.predivide_factor = predivide}) : strategy});
        auto net = seeded_blocks(), alone = seeded_blocks();
        torch::optim::SGD sgd(net->parameters(), 0.1), plain(alone->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto data = sines(5);
        const auto loss = [&](auto& of, int i) { return of(std::get<0>(data[i]).view({1, 3})).sum(); };
        const int rank = accelerator.process_index();
        accelerator.join_uneven_inputs(
            [&, model = model, optimizer = optimizer]() mutable {
              for (int step = 0; step < (rank == 1 ? 3 : 1); ++step) {
                accelerator.backward(loss(model, step));
                optimizer.step();
                optimizer.zero_grad();
              }
            },
            {.divide_by_initial_world_size = false});
        for (int step = 0; step < 3; ++step) {
          loss(alone, step).backward();
          plain.step();
          plain.zero_grad();
        }
        expect_close(full_values(model), alone->parameters(), 1e-12);
        // Afterwards every rank counts again.
        accelerator.backward(loss(model, 3 + rank));
        optimizer.step();
        ((loss(alone, 3) + loss(alone, 4)) / 2).backward();
        plain.step();
        expect_close(full_values(model), alone->parameters(), 1e-12);
      }
  });
}

TEST(UnevenSharded, RanksAgreeOnOverflowsThatOnlyTheOthersSaw) {
  testing::as_ranks(2, [] {
    for (const auto& [name, strategy] : ways(2)) {
      SCOPED_TRACE(name);
      Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = "fp16", .strategy = strategy});
      auto net = seeded_blocks(at::kFloat);
      auto adam = adam_of(net);
      auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, ExponentialLR(adam, {.gamma = 0.5}));
      const int rank = accelerator.process_index();
      std::vector<bool> skipped;
      accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer, scheduler = scheduler]() mutable {
        for (int step = 0; step < (rank == 0 ? 4 : 1); ++step) {
          optimizer.zero_grad();
          accelerator.backward(model(torch::ones({2, 3})).sum() *
                               (step == 2 ? std::numeric_limits<float>::infinity() : 1.0f));
          if (step == 1) {
            EXPECT_GT(static_cast<double>(model.grad_norm()), 0);
          }
          accelerator.clip_grad_norm_(model, 10.0);
          optimizer.step();
          scheduler.step();
          skipped.push_back(accelerator.optimizer_step_was_skipped());
        }
      });
      if (rank == 0) {
        EXPECT_EQ(skipped, (std::vector{false, false, true, false}));
      }
      EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{1, 512}));
      EXPECT_EQ(scheduler.inner()->last_epoch(), 3);
      EXPECT_DOUBLE_EQ(adam.param_groups()[0].options().get_lr(), 0.00125);
      // What they saved now is what they would save if both had had all batches.
      const auto folder = testing::shared_folder(accelerator.group());
      accelerator.save_state(folder.path());
      const auto before = full_values(model);
      accelerator.load_state(folder.path());
      const auto after = full_values(model);
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_EQ(testing::difference_in_bits(before[i], after[i]), "") << "tensor " << i;
    }
  });
}

TEST(UnevenSharded, AScaleShrinksForAWindowThatThisRankHasLeft) {
  testing::as_ranks(2, [] {
    for (const auto& [name, strategy] : ways(2)) {
      SCOPED_TRACE(name);
      Accelerator accelerator({.grad_scaler = {.init_scale = 1024},
                               .gradient_accumulation_steps = 2,
                               .mixed_precision = "fp16",
                               .strategy = strategy});
      auto net = seeded_blocks(at::kFloat);
      std::vector<at::Tensor> data(7, torch::ones({3}));
      data.back() = data.back() * 1e38;  // in the second window, after the last batch of rank 1
      auto [model, optimizer, batches] =
          accelerator.prepare(net, adam_of(net), DataLoader(data, {.batch_size = 1, .even_batches = false}));
      accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer, batches = batches]() mutable {
        int windows = 0;
        for (auto& x : batches) {
          auto window = accelerator.accumulate(model);
          accelerator.backward(model(x).sum() * x.sum());
          accelerator.clip_grad_norm_(model, 1.0);
          if (!accelerator.sync_gradients()) continue;
          if (++windows == 1) optimizer.step();
          optimizer.zero_grad();
        }
      });
      EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{0, 512}));
    }
  });
}

}  // namespace
}  // namespace muster
