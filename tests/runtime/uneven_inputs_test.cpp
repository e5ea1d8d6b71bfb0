#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

struct BumpImpl : torch::nn::Module {
  BumpImpl() { to(torch::kDouble); }
  torch::Tensor forward(torch::Tensor x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(3, 5))}, b{register_module("b", torch::nn::Linear(5, 1))};
};
TORCH_MODULE(Bump);

Bump seeded_bump() {
  torch::manual_seed(8);
  return Bump();
}

using Place = std::tuple<torch::Tensor, torch::Tensor>;

std::vector<Place> places(int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(21);
  std::vector<Place> result;
  for (int64_t i = 0; i < count; ++i) {
    auto x = torch::randn({3}, generator, torch::kDouble);
    result.emplace_back(x, x.sum().cos().view({1}));
  }
  return result;
}

/// The batches of all ranks in order: first indices and one past the last.
std::vector<std::pair<int64_t, int64_t>> cut(int64_t count, bool varying) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (int64_t first = 0, size = varying ? 2 : 4; first < count; first += size, size = varying ? size % 4 + 1 : 4)
    all.emplace_back(first, std::min(count, first + size));
  return all;
}

class CutBatches : public BatchSampler {
 public:
  explicit CutBatches(int64_t count) : batches_(cut(count, true)) {}
  int64_t size() const override { return std::ssize(batches_); }
  void start(int64_t) override { at_ = 0; }
  std::vector<int64_t> next() override {
    std::vector<int64_t> batch;
    for (auto i = batches_[at_].first; i < batches_[at_].second; ++i) batch.push_back(i);
    ++at_;
    return batch;
  }

 private:
  size_t at_ = 0;
  std::vector<std::pair<int64_t, int64_t>> batches_;
};

struct PlaceStream {
  std::vector<Place> all;
  size_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<Place> next() { return at < all.size() ? std::optional(all[at++]) : std::nullopt; }
};

enum class Kind { indices, batch_sampler, stream, dispatched };

DataLoader<Place> joined_loader(const std::vector<Place>& data, Kind kind) {
  switch (kind) {
    case Kind::batch_sampler: return DataLoader(data, CutBatches(std::ssize(data)), {.even_batches = false});
    case Kind::stream: return DataLoader(PlaceStream{data}, {.batch_size = 4, .even_batches = false});
    case Kind::dispatched:
      return DataLoader(PlaceStream{data}, {.batch_size = 4, .dispatch_batches = true, .even_batches = false});
    case Kind::indices: break;
  }
  return DataLoader(data, {.batch_size = 4, .even_batches = false});
}

torch::optim::SGD sgd_of(Bump& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// Parameters after two epochs in one process, each step over the samples of one window of `window` batches.
std::vector<torch::Tensor> in_one_process(const std::vector<Place>& data, bool varying, size_t window) {
  auto net = seeded_bump();
  auto sgd = sgd_of(net);
  ExponentialLR schedule(sgd, {.gamma = 0.9});
  const auto batches = cut(std::ssize(data), varying);
  for (int epoch = 0; epoch < 2; ++epoch)
    for (size_t begin = 0; begin < batches.size(); begin += window) {
      std::vector<torch::Tensor> x, y;
      for (auto i = batches[begin].first; i < batches[std::min(batches.size(), begin + window) - 1].second; ++i) {
        x.push_back(std::get<0>(data[i]));
        y.push_back(std::get<1>(data[i]));
      }
      sgd.zero_grad();
      torch::mse_loss(net(torch::stack(x)), torch::stack(y)).backward();
      sgd.step();
      schedule.step();
    }
  return net->parameters();
}

std::vector<torch::Tensor> joined(Accelerator& accelerator, const std::vector<Place>& data, Kind kind) {
  auto net = seeded_bump();
  auto sgd = sgd_of(net);
  auto [model, optimizer, scheduler, batches] =
      accelerator.prepare(net, sgd, ExponentialLR(sgd, {.gamma = 0.9}), joined_loader(data, kind));
  for (int epoch = 0; epoch < 2; ++epoch)
    accelerator.join_uneven_inputs(
        [&, model = model, optimizer = optimizer, scheduler = scheduler, batches = batches]() mutable {
          for (auto& [x, y] : batches) {
            auto window = accelerator.accumulate(model);
            accelerator.backward(torch::mse_loss(model(x), y));
            optimizer.step();
            scheduler.step();
            optimizer.zero_grad();
          }
        },
        {}, model);
  return net->parameters();
}

void expect_one_process(Accelerator& accelerator, int64_t count, Kind kind, int micro_batches) {
  const int world = accelerator.num_processes();
  SCOPED_TRACE(::testing::Message() << count << " samples, kind " << static_cast<int>(kind) << ", micro-batches "
                                    << micro_batches);
  accelerator.set_gradient_accumulation_steps(micro_batches);
  const auto data = places(count);
  const auto found = joined(accelerator, data, kind),
             expected = in_one_process(data, kind == Kind::batch_sampler, micro_batches * world);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(testing::difference(found[i].detach(), expected[i].detach(), 0, 1e-12), "");
}

TEST(UnevenInputs, EqualBigBatchesAlsoWhereARankHasNoBatchOfAStep) {
  for (const int world : {2, 3})
    testing::as_ranks(
        world,
        [world] {
          Accelerator accelerator;
          for (const auto kind : {Kind::indices, Kind::batch_sampler, Kind::stream, Kind::dispatched})
            for (const int micro_batches : {1, 2, 3})
              // The last step has a batch on one rank, on all but one, or a short one on the last.
              for (const int64_t rest : {2, 4 * (world - 1) + (world == 2 ? -1 : 0), 4 * world - 1})
                expect_one_process(accelerator, 4 * world * 4 + rest, kind, micro_batches);
          expect_one_process(accelerator, 3, Kind::indices, 2);  // one rank has all there is
          Accelerator often({.gradient_accumulation = {.num_steps = 3, .sync_each_batch = true}});
          expect_one_process(often, 4 * world * 4 + 2, Kind::indices, 3);
        },
        std::to_string(world));
}

TEST(UnevenInputs, EvenBatchesMayBeOverriddenMeanwhile) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    const auto data = places(9);
    auto [model, batches] = accelerator.prepare(seeded_bump(), DataLoader(data, {.batch_size = 4}));
    const auto run = [&, batches = batches](std::optional<bool> even) {
      int64_t seen = 0;
      accelerator.join_uneven_inputs(
          [&] {
            for (auto& [x, y] : batches) seen += x.size(0);
          },
          {.even_batches = even});
      return accelerator.reduce(torch::tensor(seen)).item<int64_t>();
    };
    EXPECT_EQ(run(std::nullopt), 16);
    EXPECT_EQ(run(false), 9);
    EXPECT_EQ(run(true), 16);
    EXPECT_EQ(batches.size(), 2);
    EXPECT_THROW(
        accelerator.join_uneven_inputs([] { throw std::runtime_error("on every rank"); }, {.even_batches = false}),
        std::runtime_error);
    EXPECT_EQ(batches.size(), 2);
  });
}

TEST(UnevenInputs, RanksGoOnWithOneLossScaleOneScheduleAndOneState) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = "fp16"});
    torch::manual_seed(2);
    torch::nn::Linear net(3, 1);
    torch::optim::Adam adam(net->parameters(), 0.01);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, ExponentialLR(adam, {.gamma = 0.5}));
    const int rank = accelerator.process_index();
    accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer, scheduler = scheduler]() mutable {
      for (int step = 0; step < (rank == 0 ? 3 : 1); ++step) {
        optimizer.zero_grad();
        accelerator.backward(model(torch::ones({2, 3})).sum() *
                             (step == 2 ? std::numeric_limits<float>::infinity() : 1.0f));
        optimizer.step();
        scheduler.step();
      }
    });
    EXPECT_EQ(*optimizer.scaler_state(), (GradScalerState{0, 512}));  // the third step, which rank 1 never saw
    EXPECT_EQ(scheduler.inner()->last_epoch(), 2);
    EXPECT_DOUBLE_EQ(adam.param_groups()[0].options().get_lr(), 0.0025);
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({2, 3})).sum());
    optimizer.step();
    const auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().at(net->weight.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 3);
    const auto moments = accelerator.gather(state.exp_avg_sq()), weights = accelerator.gather(net->weight.detach());
    EXPECT_EQ(testing::difference_in_bits(moments[0], moments[1]), "");
    EXPECT_EQ(testing::difference_in_bits(weights[0], weights[1]), "");
  });
}

TEST(UnevenInputs, WhatCannotBeJoinedIsRefused) {
  testing::as_ranks(2, [] {
    Accelerator accelerator, sharding({.strategy = "fsdp"});
    auto model = accelerator.prepare(seeded_bump());
    EXPECT_EQ(
        testing::thrown_id([&] { accelerator.join_uneven_inputs([&] { accelerator.accumulate(model).count(3); }); }),
        "MU183");
    auto sharded = sharding.prepare(torch::nn::BatchNorm1d(2));
    sharding.convert_sync_batchnorm(sharded);
    EXPECT_EQ(testing::thrown_id([&] { sharding.join_uneven_inputs([] {}); }), "MU117");
  });
}

/// What this rank of two throws when rank 0 has three batches and rank 1 one, and `beside` runs in each step.
std::string thrown_in(const Strategy& strategy,
                      const std::function<void(Accelerator&, torch::nn::Linear&, int step)>& beside) {
  Accelerator accelerator({.strategy = strategy});
  torch::nn::Linear net(3, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const int rank = accelerator.process_index();
  try {
    accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer]() mutable {
      for (int step = 0; step < (rank == 0 ? 3 : 1); ++step) {
        const float factor = step == 2 ? std::numeric_limits<float>::infinity() : 1;
        accelerator.backward(model(torch::ones({2, 3})).sum() * factor);
        beside(accelerator, net, step);
        optimizer.step();
        optimizer.zero_grad();
      }
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST(UnevenInputs, WhatIsNotMatchedIsAnErrorOnAllRanks) {
  for (const Strategy& strategy : {Strategy("ddp"), Strategy("zero2"), Strategy("fsdp")}) {
    const std::string name(strategy.name());
    testing::as_ranks(
        2,
        [&] {
          const auto found = thrown_in(strategy, [](Accelerator& accelerator, torch::nn::Linear&, int) {
            accelerator.gather(torch::ones({2}));
          });
          EXPECT_TRUE(found.starts_with("MU050")) << found;
        },
        name + ", a collective");
    testing::as_ranks(
        2,
        [&] {
          const bool fails = Accelerator().process_index() == 0;
          const auto found = thrown_in(strategy, [](Accelerator&, torch::nn::Linear&, int step) {
            if (step == 1) throw std::runtime_error("no more");
          });
          EXPECT_TRUE(fails ? found == "no more" : found.starts_with("MU119")) << found;
        },
        name + ", a loop that throws");
    testing::as_ranks(
        2,
        [&] {
          const auto found = thrown_in(strategy, [](Accelerator& accelerator, torch::nn::Linear& net, int) {
            accelerator.clip_grad_norm_(net->parameters(), 1, {.error_if_nonfinite = true});
          });
          // A rank without a batch clips only shards.
          const bool clips = name != "ddp" || Accelerator().process_index() == 0;
          EXPECT_TRUE(found.starts_with(clips ? "MU175" : "MU119")) << found;
        },
        name + ", a norm that is not finite");
  }
}

TEST(UnevenInputs, RanksThatStepDifferentlyAreAnErrorOnAll) {  // MU118
  testing::as_ranks(3, [] {
    Accelerator accelerator({.strategy = "zero2"});
    torch::nn::Linear net(3, 1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const int rank = accelerator.process_index();
    EXPECT_EQ(testing::thrown_id([&] {
                accelerator.join_uneven_inputs([&, model = model, optimizer = optimizer]() mutable {
                  for (int step = 0; step < (rank == 2 ? 0 : 2); ++step) {
                    accelerator.backward(model(torch::ones({2, 3})).sum());
                    optimizer.param_groups()[0].options().set_lr(0.1 * (rank + 1));
                    optimizer.step();
                  }
                });
              }),
              "MU118");
  });
}

struct NormedImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return norm(x); }
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(2))};
};
TORCH_MODULE(Normed);

TEST(BothApis, TakeStatisticsFromAllRanks) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    Normed whole;
    auto model = accelerator.prepare(Normed());
    EXPECT_EQ(accelerator.convert_sync_batchnorm(model), 1);
    const auto x = torch::arange(12, torch::kFloat).view({6, 2}).sin();
    const auto expected = whole(x), mine = model(x.narrow(0, 3 * accelerator.process_index(), 3)).detach();
    EXPECT_EQ(testing::difference(accelerator.gather(mine), expected.detach(), 1e-5, 1e-6), "");
  });
}

struct ScalarImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor slope) { return w * slope; }
  torch::Tensor w = register_parameter("w", torch::ones({1}));
};
TORCH_MODULE(Scalar);

TEST(BothApis, AverageParametersEveryFewSteps) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    Scalar net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const float slope = 1.0f + accelerator.process_index();
    const std::vector<float> expected = slope == 1 ? std::vector{0.9f, 0.7f, 0.6f} : std::vector{0.8f, 0.7f, 0.5f};
    auto local = accelerator.local_sgd(model, {.local_sgd_steps = 2});
    for (const float value : expected) {
      accelerator.backward(model(torch::tensor({slope})).sum());
      optimizer.step();
      optimizer.zero_grad();
      local.step();
      EXPECT_NEAR(net->w.item<float>(), value, 1e-6);
    }
    local.finish();
    EXPECT_NEAR(net->w.item<float>(), 0.55f, 1e-6);
  });
}

TEST(UnevenInputs, ALoopThatEndsInsideAWindowIsRefused) {  // MU118
  testing::as_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    torch::nn::Linear net(2, 1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const auto once = [&accelerator, &model = model] {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 2})).sum());
    };
    EXPECT_EQ(testing::thrown_id([&] { accelerator.join_uneven_inputs(once); }), "MU118");
  });
}

}  // namespace
}  // namespace muster
