#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/optim/averaging.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

/// What programs do inside join_uneven_inputs(), and what ranks without batches make of it.
namespace muster {
namespace {

/// Three layers of more elements than fit one rank's shard; under fsdp the two blocks are units.
struct FollowedImpl : torch::nn::Module {
  FollowedImpl() {
    for (int i = 0; i < 2; ++i) blocks->push_back(torch::nn::Linear(48, 48));
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = torch::tanh(block->as<torch::nn::Linear>()->forward(x));
    return out(x);
  }
  torch::nn::ModuleList blocks{register_module("blocks", torch::nn::ModuleList())};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(48, 1))};
};
TORCH_MODULE(Followed);

Followed seeded_followed() {
  torch::manual_seed(4);
  return Followed();
}

at::Tensor input(int step, int rank) {
  return torch::cos(torch::arange(96, at::kDouble).view({2, 48}) * (step + 1) + rank);
}

std::vector<at::Tensor> values_of(const auto& model) {
  std::vector<at::Tensor> values;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) values.push_back(value);
  return values;
}

using Ways = std::vector<std::pair<std::string, Strategy>>;

Ways followed_ways() {
  return {{"ddp", "ddp"},
          {"zero1", "zero1"},
          {"zero2", "zero2"},
          {"fsdp", "fsdp"},
          {"gathered", FSDP{.one_copy_per_host = false}},
          {"kept after forward", FSDP{.one_copy_per_host = false, .reshard_after_forward = false}}};
}

/// A program: `step` runs for each batch, of which rank 1 has one and rank 0 `batches`; then all ranks make one more.
struct Program {
  int batches = 4;
  std::function<void(Accelerator&, Followed&, Model<FollowedImpl>&, Optimizer&, int step)> step;
};

void plain_step(Accelerator& accelerator, Model<FollowedImpl>& model, Optimizer& optimizer, int step) {
  accelerator.backward(model(input(step, accelerator.process_index())).pow(2).sum());
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<at::Tensor> run(const Strategy& strategy, const Program& program,
                            const std::function<void(Followed&)>& prepares = nullptr) {
  Accelerator accelerator({.strategy = strategy});
  auto net = seeded_followed();
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)));
  if (prepares) prepares(net);
  const int rank = accelerator.process_index();
  accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer]() mutable {
    for (int step = 0; step < (rank == 0 ? program.batches : 1); ++step)
      program.step(accelerator, net, model, optimizer, step);
  });
  plain_step(accelerator, model, optimizer, 9);
  return values_of(model);
}

/// Every way ends where ddp ends.
void expect_as_ddp(const Program& program, const std::function<void(Followed&)>& prepares = nullptr) {
  testing::as_ranks(2, [&] {
    const auto expected = run("ddp", program, prepares);
    for (const auto& [name, strategy] : followed_ways()) {
      SCOPED_TRACE(name);
      const auto found = run(strategy, program, prepares);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(testing::difference(found[i], expected[i], 1e-11, 1e-11), "") << "tensor " << i;
    }
  });
}

TEST(UnevenFollowed, AUnitThatWasFrozenAfterPrepare) {
  expect_as_ddp({.step = [](Accelerator& accelerator, Followed&, Model<FollowedImpl>& model, Optimizer& optimizer,
                            int step) { plain_step(accelerator, model, optimizer, step); }},
                [](Followed& net) {
                  for (auto& parameter : net->blocks[1]->parameters()) parameter.requires_grad_(false);
                });
}

TEST(UnevenFollowed, ParametersThatTheLoopFreezes) {
  expect_as_ddp(
      {.step = [](Accelerator& accelerator, Followed& net, Model<FollowedImpl>& model, Optimizer& optimizer, int step) {
        if (step == 2)
          for (auto& parameter : net->blocks[0]->parameters()) parameter.requires_grad_(false);
        if (accelerator.process_index() == 0 && step == 3) {
          EXPECT_FALSE(net->blocks[0]->parameters()[0].requires_grad());
        }
        plain_step(accelerator, model, optimizer, step);
      }});
}

/// Under ddp ranks without a batch would wait for its messages: MU050.
TEST(UnevenFollowed, ABackwardThatThrewAndWasCaught) {
  const auto plain = [](Accelerator& accelerator, Followed&, Model<FollowedImpl>& model, Optimizer& optimizer,
                        int step) { plain_step(accelerator, model, optimizer, step); };
  const auto throws_last = [](Accelerator& accelerator, Followed& net, Model<FollowedImpl>& model, Optimizer& optimizer,
                              int step) {
    if (step != 3) return plain_step(accelerator, model, optimizer, step);
    const auto& weight = net->blocks[0]->as<torch::nn::Linear>()->weight;
    const auto broken =
        weight.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("broken"); });
    EXPECT_ANY_THROW(accelerator.backward(model(input(step, 0)).sum()));
    weight.remove_hook(broken);
    optimizer.zero_grad();
  };
  testing::as_ranks(2, [&] {
    const auto expected = run("ddp", {.batches = 3, .step = plain});
    for (const auto& [name, strategy] : followed_ways()) {
      if (name == "ddp") continue;
      SCOPED_TRACE(name);
      const auto found = run(strategy, {.batches = 4, .step = throws_last});
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(testing::difference(found[i], expected[i], 1e-11, 1e-11), "") << "tensor " << i;
    }
  });
}

TEST(UnevenFollowed, AModelThatOnlyMakesInputs) {
  testing::as_ranks(2, [] {
    std::vector<at::Tensor> expected;
    for (const auto& [name, strategy] : followed_ways()) {
      SCOPED_TRACE(name);
      Accelerator accelerator({.strategy = strategy});
      auto teacher = accelerator.prepare(seeded_followed());
      auto net = seeded_followed();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
      const int rank = accelerator.process_index();
      auto step = [&, model = model, optimizer = optimizer](int number) mutable {
        at::Tensor target;
        {
          const at::NoGradGuard no_grad;
          target = teacher(input(number, rank)) * 2;
        }
        accelerator.backward((model(input(number, rank)) - target).pow(2).sum());
        optimizer.step();
        optimizer.zero_grad();
      };
      accelerator.join_uneven_inputs(
          [&] {
            for (int number = 0; number < (rank == 0 ? 4 : 1); ++number) step(number);
          },
          {}, model);
      step(7);
      const auto found = values_of(model);
      if (expected.empty()) expected = found;
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(testing::difference(found[i], expected[i], 1e-11, 1e-11), "") << "tensor " << i;
    }
  });
}

TEST(UnevenFollowed, GradientsThatARankClearedBeforeTheOthersUsedThem) {  // MU118
  for (const auto& [name, strategy] : followed_ways()) {
    if (name == "ddp") continue;  // a rank without a batch makes no steps
    testing::as_ranks(
        2,
        [&strategy = strategy] {
          Accelerator accelerator({.strategy = strategy});
          auto net = seeded_followed();
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
          const int rank = accelerator.process_index();
          const auto id = testing::thrown_id([&, model = model, optimizer = optimizer]() mutable {
            accelerator.join_uneven_inputs([&] {
              for (int step = 0; step < (rank == 0 ? 4 : 1); ++step) {
                accelerator.backward(model(input(step, rank)).sum());
                if (step % 2 != 0) optimizer.step();
              }
              net->zero_grad();
            });
          });
          EXPECT_EQ(id, rank == 0 ? "MU119" : "MU118");
        },
        name);
  }
}

TEST(UnevenFollowed, WhatCannotBeFollowedIsRefused) {  // MU585
  testing::as_ranks(2, [] {
    for (const auto& [name, strategy] : followed_ways()) {
      SCOPED_TRACE(name);
      Accelerator accelerator({.strategy = strategy});
      auto net = seeded_followed();
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01));
      AveragedModel average(model);
      const auto refused = [&](const std::function<void()>& f, UnevenInputsOptions options = {}) {
        return testing::thrown_id([&] { accelerator.join_uneven_inputs(f, options); });
      };
      EXPECT_EQ(refused([&] { accelerator.join_uneven_inputs([] {}); }), "MU585");
      EXPECT_EQ(refused([&, optimizer = optimizer]() mutable { optimizer.step([] { return torch::ones({}); }); }),
                "MU585");
      EXPECT_EQ(refused([&] { average.update(); }), "MU585");
      const auto accumulates = [&, model = model] { const auto scope = accelerator.accumulate(model); };
      EXPECT_EQ(refused(accumulates, {.divide_by_initial_world_size = false}), "MU585");
      average.update();
      EXPECT_EQ(average.n_averaged(), 1);
    }
  });
}

TEST(UnevenFollowed, AWindowThatARankHasLeftCountsAfterZerosInPlace) {
  testing::as_ranks(2, [] {
    for (const auto& [name, strategy] : followed_ways()) {
      SCOPED_TRACE(name);
      Accelerator accelerator({.gradient_accumulation_steps = 2, .strategy = strategy});
      auto net = seeded_followed(), alone = seeded_followed();
      std::vector<at::Tensor> data;
      for (int i = 0; i < 7; ++i) data.push_back(input(i, 0)[0]);
      auto [model, optimizer, batches] = accelerator.prepare(
          net, torch::optim::SGD(net->parameters(), 0.01), DataLoader(data, {.batch_size = 1, .even_batches = false}));
      accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer, batches = batches]() mutable {
        for (auto& x : batches) {
          auto window = accelerator.accumulate(model);
          accelerator.backward(model(x).pow(2).mean());
          optimizer.step();
          optimizer.zero_grad(/*set_to_none=*/false);
        }
      });
      torch::optim::SGD plain(alone->parameters(), 0.01);
      for (const auto& [first, last] : {std::pair(0, 4), std::pair(4, 7)}) {
        plain.zero_grad();
        alone(torch::stack(std::vector(data.begin() + first, data.begin() + last))).pow(2).mean().backward();
        plain.step();
      }
      const auto found = values_of(model);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_EQ(testing::difference(found[i], alone->parameters()[i].detach(), 1e-11, 1e-11), "") << "tensor " << i;
    }
  });
}

}  // namespace
}  // namespace muster
