#include "parallel/sharded_model.h"

#include <cmath>

#include <ATen/autocast_mode.h>

#include "parallel/replicated_model.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

void train_like_reference(int world, at::ScalarType dtype, int steps, int micro, bool exact) {
  Reference reference(make_net(true, dtype), world);
  reference.train(steps, micro);
  on_seeded_ranks(world, [&](comm::Communicator group) { expect_rank_like(reference, group, dtype, micro, exact); });
}

TEST(ShardedModel, SameBitsAsOneProcessAtTwoRanks) { train_like_reference(2, at::kFloat, 10, 1, true); }
TEST(ShardedModel, SameBitsInFloat64) { train_like_reference(2, at::kDouble, 10, 1, true); }
TEST(ShardedModel, SameBitsAlone) { train_like_reference(1, at::kFloat, 3, 1, true); }
TEST(ShardedModel, SameBitsWithAccumulation) { train_like_reference(2, at::kFloat, 3, 2, true); }
TEST(ShardedModel, ThreeAndFourRanks) {
  train_like_reference(3, at::kDouble, 1, 1, false);
  train_like_reference(4, at::kDouble, 1, 1, false);
}

TEST(ShardedModel, SameBitsAsTheReducer) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto sharded_net = make_net(), replicated_net = make_net();
    torch::optim::AdamW sharded_adam(sharded_net->parameters(), adamw()),
        replicated_adam(replicated_net->parameters(), adamw());
    ShardedModel sharded(*sharded_net, group);
    ReplicatedModel replicated(*replicated_net, group);
    optim::FusedStep sharded_optimizer(sharded_adam, {&sharded}), replicated_optimizer(replicated_adam, {&replicated});
    for (int s = 0; s < 10; ++s) {
      auto words = words_of(s, group.rank());
      const auto step = [&](ManagedModel& model, Net& net, optim::FusedStep& optimizer) {
        auto loss = loss_of(forward(model, net, words), words);
        backward(model, loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss.item<float>();
      };
      EXPECT_EQ(step(sharded, sharded_net, sharded_optimizer), step(replicated, replicated_net, replicated_optimizer));
    }
    expect_state(sharded, replicated_net, true);
  });
}

TEST(ShardedModel, SaysOnceWhichMarkReachedNoModel) {
  nn::Sequential net(nn::Linear(2, 2));
  ShardedModel model(*net, comm::Communicator());
  const auto stray = wrap(nn::Linear(2, 2));
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) {
    const ForwardScope scope(model);
    backward(model, net->forward(torch::ones({1, 2})).sum());
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("MU249: a torch::nn::LinearImpl was given to muster::wrap()"), std::string::npos) << said;
  EXPECT_EQ(said.find("MU249"), said.rfind("MU249"));
}

TEST(ShardedModel, SameBitsInTwoProcesses) {
  for (const std::string backend : {"gloo", "shm"}) {
    const auto body = [&](comm::Communicator group) {
      EXPECT_EQ(group.backend(), backend);
      Reference reference(make_net(true), 2);
      reference.train(10);
      expect_rank_like(reference, group, at::kFloat, 1, true);
    };
    muster::testing::expect_processes(2, body, backend, {.backend = backend});
  }
}

TEST(ShardedModel, Bfloat16AutocastCastsGatheredValues) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net(), plain = make_net();
    ShardedModel model(*net, group);
    const auto run = [](auto&& forward) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      auto output = forward();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return loss_of(output.to(at::kFloat), words_of(0, 0));
    };
    auto loss = run([&] { return forward(model, net, words_of(0, 0)); });
    auto wanted = run([&] { return plain(words_of(0, 0)); });
    EXPECT_EQ(loss.item<float>(), wanted.item<float>());
    backward(model, loss);
    wanted.backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto mine = model.gradient_power_sum({net->parameters()[i]}, INFINITY);
      EXPECT_EQ(mine, plain->parameters()[i].grad().abs().max().item<float>()) << plain->named_parameters().keys()[i];
    }
  });
}

TEST(ShardedModel, AStepMakesOlderGraphsStale) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    torch::optim::AdamW adam(net->parameters(), adamw());
    ShardedModel model(*net, group);
    optim::FusedStep optimizer(adam, {&model});
    auto words = words_of(0, group.rank());
    auto old = loss_of(forward(model, net, words), words);
    backward(model, loss_of(forward(model, net, words), words));
    optimizer.step();
    EXPECT_THROW(backward(model, old), c10::Error);  // as LibTorch says of a plain module
  });
}

TEST(ShardedModel, SameBitsWithAnyUnits) {
  Reference reference(make_net(), 2);
  reference.train(3);
  for (bool by_mark : {false, true})
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(false, at::kFloat, 11, by_mark);
      ShardedModel model(*net, group, {.auto_wrap = false});
      EXPECT_EQ(model.stats().units,
                by_mark ? (std::vector<std::string>{"root", "head"}) : std::vector<std::string>{"root"});
      torch::optim::AdamW adam(net->parameters(), adamw());
      optim::FusedStep optimizer(adam, {&model});
      for (int s = 0; s < 3; ++s) {
        auto words = words_of(s, group.rank());
        backward(model, loss_of(forward(model, net, words), words));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_state(model, reference.net, true);
    });
}

/// A layer has 4160 elements, which are 66 blocks of 64 on two ranks: 8.25 KiB of values on each, as much of gradients
/// and two flags.
TEST(ShardedModel, SaysInOneLineWhatWasDecided) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    nn::Sequential net;
    for (int i = 0; i < 12; ++i) net->push_back(nn::Linear(64, 64));
    EXPECT_EQ(
        ShardedModel(*net, group).describe(),
        "fsdp: 2 ranks, 12 units (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more), 49920 parameters; each rank holds "
        "198.1 KiB of "
        "values and gradients at rest and "
        "264.1 KiB at peak; each rank gathers its own copy, since the ranks of the shards do not all share memory; "
        "a step takes 24 gathers and 12 reductions");
  });
}

TEST(ShardedModel, HoldsItsPartAndGathersOneUnitBesideTheRoot) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    ShardedModel model(*net, group);
    EXPECT_EQ(model.stats().units,
              (std::vector<std::string>{"root", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}));
    EXPECT_NE(model.describe().find("2 ranks, 4 units"), std::string::npos) << model.describe();
    int64_t held = 0, whole = 0;
    for (auto& parameter : net->parameters()) {
      held += model.find(parameter)->value.numel();
      whole += (parameter.numel() + 63) / 64 * 64;
      EXPECT_EQ(model.find(parameter)->value.numel() % 64, 0);
    }
    EXPECT_NEAR(double(held), whole / 2.0, 4 * 64);
    EXPECT_EQ(model.stats().gathered_bytes, 0);
    auto words = words_of(0, group.rank());
    auto loss = loss_of(forward(model, net, words), words);
    EXPECT_EQ(model.stats().gathers, 4);
    EXPECT_EQ(model.stats().gathered_bytes, 4 * 1536);  // the root's stay: 23 blocks of 64 on two ranks
    backward(model, loss);
    EXPECT_EQ(model.stats().gathers, 7);
    EXPECT_EQ(model.stats().reductions, 4);
    EXPECT_EQ(model.stats().gathered_bytes, 0);
    EXPECT_LT(model.stats().peak_gathered_bytes, 4 * whole * 2 / 3);
    EXPECT_THROW(net->head->weight.const_data_ptr<float>(), c10::Error);
  });
}

TEST(ShardedModel, BackwardCalledDirectlyAndGradientsOfActivations) {
  Reference reference(make_net(), 2);
  reference.train(2);
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    ShardedModel model(*net, group);
    torch::optim::AdamW adam(net->parameters(), adamw());
    optim::FusedStep optimizer(adam, {&model});
    for (int s = 0; s < 2; ++s) {
      auto words = words_of(s, group.rank());
      auto logits = forward(model, net, words);
      auto loss = loss_of(logits, words);
      const auto reductions = model.stats().reductions;
      EXPECT_EQ(torch::autograd::grad({loss}, {logits}, {}, true).size(), 1u);
      EXPECT_EQ(model.stats().reductions, reductions);
      loss.backward();
      EXPECT_EQ(model.stats().reductions, reductions + 4);
      EXPECT_EQ(model.stats().gathered_bytes, 0);
      optimizer.step();
      net->zero_grad();
    }
    expect_state(model, reference.net, true);
    auto words = words_of(5, group.rank());
    const auto size = [&] { return model.gradient_power_sum({net->head->bias}, 1); };
    loss_of(forward(model, net, words), words).backward();
    const auto once = size();
    loss_of(forward(model, net, words), words).backward();  // adds to what is there
    EXPECT_EQ(size(), 2 * once);
  });
}

TEST(ShardedModel, FullStateOnMainOnlyOrEverywhereWithBuffers) {
  on_seeded_ranks(3, [&](comm::Communicator group) {
    nn::Sequential net(nn::Linear(5, 6), nn::BatchNorm1d(6));
    net[1]->as<nn::BatchNorm1d>()->running_mean.fill_(group.rank() + 1);
    auto linear = torch::arange(30).view({6, 5}).to(at::kFloat) + group.rank() * 100;
    {
      at::NoGradGuard no_grad;
      net[0]->as<nn::Linear>()->weight.copy_(linear);
    }
    ShardedModel model(*net, group);
    auto everywhere = model.full_state(false);
    ASSERT_EQ(everywhere.size(), 7u);
    EXPECT_EQ(everywhere[0].first, "0.weight");
    EXPECT_TRUE(torch::equal(everywhere[0].second, torch::arange(30).view({6, 5}).to(at::kFloat)));
    EXPECT_EQ(everywhere[4].first, "1.running_mean");
    EXPECT_EQ(everywhere[4].second[0].item<float>(), 1);
    auto main = model.full_state(true);
    EXPECT_EQ(main.size(), group.rank() == 0 ? 7u : 0u);
    if (group.rank() == 0) {
      EXPECT_TRUE(torch::equal(main[0].second, everywhere[0].second));
    }
  });
}

TEST(ShardedModel, TwoModelsAtOnceAndForwardsBeforeOneBackward) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto one = make_net(), two = make_net(false, at::kFloat, 5), plain_one = make_net(),
         plain_two = make_net(false, at::kFloat, 5);
    ShardedModel first(*one, group), second(*two, group);
    auto words = words_of(0, 0), more = words_of(1, 0);
    const auto total = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
      return loss_of(a, words) + loss_of(b, more) * loss_of(c, words);
    };
    auto loss = total(forward(first, one, words), forward(first, one, more), forward(second, two, words));
    first.before_backward();
    second.before_backward();
    loss.backward();
    first.after_backward();
    second.after_backward();
    total(plain_one(words), plain_one(more), plain_two(words)).backward();
    for (auto [model, net, plain] : {std::tuple(&first, one, plain_one), std::tuple(&second, two, plain_two)}) {
      auto parameters = net->parameters();
      auto wanted = plain->parameters();
      Tensor sum = torch::zeros({}, at::kDouble);
      for (auto& parameter : wanted) sum += parameter.grad().to(at::kDouble).pow(2).sum();
      EXPECT_NEAR(model->gradient_power_sum(parameters, 2), sum.item<double>(), 1e-12 * sum.item<double>());
      EXPECT_EQ(model->stats().gathered_bytes, 0);
    }
  });
}

TEST(ShardedModel, GradientsThatOneRankLacksCountOnAllAndClearedOnesOnNone) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    nn::ModuleList list(nn::Linear(3, 3), nn::Linear(3, 3), nn::Linear(3, 3));
    ShardedModel model(*list, group, {.auto_wrap = false});
    const auto layer = [&](size_t i) { return list[i]->as<nn::Linear>(); };
    const auto run = [&] {
      model.enter_forward();
      auto y = layer(0)->forward(torch::ones({1, 3}, torch::requires_grad()));
      if (group.rank() == 1) y = layer(1)->forward(y);
      model.leave_forward();
      backward(model, y.sum());
    };
    run();
    EXPECT_TRUE(model.has_gradient(layer(0)->weight));
    EXPECT_TRUE(model.has_gradient(layer(1)->weight));
    EXPECT_FALSE(model.has_gradient(layer(2)->weight));
    const auto once = model.gradient_power_sum({layer(0)->weight}, 1);
    run();
    EXPECT_EQ(model.gradient_power_sum({layer(0)->weight}, 1), 2 * once);
    model.for_each_gradient(list->parameters(), [](const Tensor& gradient) { gradient.mul_(0.5); });
    EXPECT_EQ(model.gradient_power_sum({layer(0)->weight}, 1), once);
    model.zero_grad(layer(0)->weight, /*set_to_none=*/false);
    EXPECT_TRUE(model.has_gradient(layer(0)->weight));
    EXPECT_EQ(model.gradient_power_sum({layer(0)->weight}, 1), 0);
    list->zero_grad();  // the user's own way
    run();
    EXPECT_EQ(model.gradient_power_sum({layer(0)->weight}, 1), once);
    model.zero_grad(layer(0)->weight, /*set_to_none=*/true);
    EXPECT_FALSE(model.has_gradient(layer(0)->weight));
  });
}

TEST(ShardedModel, EvaluationWithoutGradientsFreesEverything) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    auto plain = make_net();
    ShardedModel model(*net, group);
    at::NoGradGuard no_grad;
    net->eval();
    plain->eval();
    EXPECT_TRUE(torch::equal(forward(model, net, words_of(0, 0)), plain(words_of(0, 0))));
    EXPECT_EQ(model.stats().gathered_bytes, 0);
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
