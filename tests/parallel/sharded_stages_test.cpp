#include "muster/base/error.h"
#include "parallel/replicated_model.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

void stages_like_reference(int world, at::ScalarType dtype, int steps, int micro, bool exact) {
  Reference reference(make_net(true, dtype), world);
  reference.train(steps, micro);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(
        world, [&](comm::Communicator group) { expect_rank_like(reference, group, dtype, micro, exact, options); });
  }
}

TEST(ShardedStages, SameBitsAsOneProcessOverTenSteps) { stages_like_reference(2, at::kFloat, 10, 1, true); }
TEST(ShardedStages, SameBitsInFloat64) { stages_like_reference(2, at::kDouble, 10, 1, true); }
TEST(ShardedStages, SameBitsWithMicroBatches) { stages_like_reference(2, at::kFloat, 3, 3, true); }
TEST(ShardedStages, ThreeAndFourRanks) {
  stages_like_reference(3, at::kDouble, 1, 1, false);
  stages_like_reference(4, at::kDouble, 1, 1, false);
}
TEST(ShardedStages, Alone) { stages_like_reference(1, at::kFloat, 2, 1, true); }

TEST(ShardedStages, SameBitsAsTheReducerOfThreeRanksWithMicroBatches) {
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(3, [&](comm::Communicator group) {
      auto sharded_net = make_net(), replicated_net = make_net();
      torch::optim::AdamW sharded_adam(sharded_net->parameters(), adamw()),
          replicated_adam(replicated_net->parameters(), adamw());
      ShardedModel sharded(*sharded_net, group, options);
      ReplicatedModel replicated(*replicated_net, group);
      optim::FusedStep sharded_optimizer(sharded_adam, {&sharded}),
          replicated_optimizer(replicated_adam, {&replicated});
      for (int s = 0; s < 2; ++s) {
        const auto step = [&](ManagedModel& model, Net& net, optim::FusedStep& optimizer) {
          for (int m = 0; m < 3; ++m) {
            model.set_gradient_sync(m == 2);
            auto words = words_of(3 * s + m, group.rank());
            backward(model, loss_of(forward(model, net, words), words));
          }
          optimizer.step();
          optimizer.zero_grad();
        };
        step(sharded, sharded_net, sharded_optimizer);
        step(replicated, replicated_net, replicated_optimizer);
      }
      expect_state(sharded, replicated_net, true);
    });
  }
}

/// Tied, frozen, used twice, several dtypes, units within units, and a parameter without use.
struct OddImpl : nn::Module {
  OddImpl() {
    words = register_module("words", nn::Embedding(17, 12));
    block = register_module("block", wrap(nn::Sequential(nn::Linear(12, 30), nn::Tanh(), wrap(nn::Linear(30, 12)))));
    frozen =
        register_module("frozen", wrap(nn::Sequential(nn::Linear(12, 12), nn::LayerNorm(nn::LayerNormOptions({12})))));
    frozen[0]->as<nn::Linear>()->weight.requires_grad_(false);
    still = register_module("still", wrap(nn::Linear(12, 12)));
    for (auto& parameter : still->parameters()) parameter.requires_grad_(false);
    norm = register_module("norm", nn::BatchNorm1d(12));
    wide = register_module("wide", wrap(nn::Linear(12, 5)));
    wide->to(at::kDouble);
    spare = register_parameter("spare", torch::ones({3}));
  }
  Tensor forward(const Tensor& ids) {
    auto x = words(ids).mean(1);
    x = block->forward(x) + block->forward(torch::tanh(x));  // used twice
    x = still(norm(frozen->forward(x)));
    return nn::functional::linear(x, words->weight).mean(1, true).to(at::kDouble) + wide(x.to(at::kDouble));  // tied
  }
  nn::Embedding words{nullptr};
  nn::Sequential block{nullptr}, frozen{nullptr};
  nn::Linear still{nullptr}, wide{nullptr};
  nn::BatchNorm1d norm{nullptr};
  Tensor spare;
};
TORCH_MODULE(Odd);

Odd make_odd() {
  static std::mutex mutex;
  std::scoped_lock lock(mutex);
  torch::manual_seed(3);
  return Odd();
}

Tensor odd_loss(ManagedModel& model, Odd& net, const Tensor& ids) {
  model.enter_forward();
  auto loss = net(ids).pow(2).mean();
  model.leave_forward();
  return loss;
}

Tensor ids_of(int step, int rank) { return (torch::arange(8 * 3).view({8, 3}) * (step + 2) + rank * 5) % 17; }

TEST(ShardedStages, TiedFrozenNestedAndReusedModulesLikeTheReducer) {
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto sharded_net = make_odd(), replicated_net = make_odd();
      std::vector<Tensor> mine, theirs;
      for (auto& parameter : sharded_net->parameters())
        if (parameter.requires_grad()) mine.push_back(parameter);
      for (auto& parameter : replicated_net->parameters())
        if (parameter.requires_grad()) theirs.push_back(parameter);
      torch::optim::AdamW sharded_adam(mine, adamw()), replicated_adam(theirs, adamw());
      ShardedModel sharded(*sharded_net, group, options);
      ReplicatedModel replicated(*replicated_net, group, {.find_unused_parameters = true});
      optim::FusedStep sharded_optimizer(sharded_adam, {&sharded}),
          replicated_optimizer(replicated_adam, {&replicated});
      for (int s = 0; s < 4; ++s) {
        const auto step = [&](ManagedModel& model, Odd& net, optim::FusedStep& optimizer) {
          auto loss = odd_loss(model, net, ids_of(s, group.rank()));
          if (s == 2)
            loss = loss + odd_loss(model, net, ids_of(s + 9, group.rank()));  // two forwards before one backward
          backward(model, loss);
          optimizer.step();
          optimizer.zero_grad();
          return loss.item<double>();
        };
        EXPECT_EQ(step(sharded, sharded_net, sharded_optimizer), step(replicated, replicated_net, replicated_optimizer))
            << s;
      }
      auto wanted = replicated_net->named_parameters();
      for (auto& [name, tensor] : sharded.full_state(false))
        if (wanted.contains(name)) {
          EXPECT_TRUE(torch::equal(tensor, wanted[name])) << name;
        }
    });
  }
}

TEST(ShardedStages, HybridShardingLikeOneProcess) {
  Reference reference(make_net(true, at::kDouble), 4);
  reference.train(2);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(4, [&](comm::Communicator group) {
      const auto [shards, replicas] = two_by_two(group);
      auto net = make_net(true, at::kDouble, 11 + group.rank());  // the values of rank 0 win
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, shards, replicas, options);
      EXPECT_NE(model.describe().find("4 ranks (2 replicas of 2 shards)"), std::string::npos) << model.describe();
      optim::FusedStep optimizer(adam, {&model});
      for (int s = 0; s < 2; ++s) {
        auto words = words_of(s, group.rank());
        backward(model, loss_of(forward(model, net, words), words));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_state(model, reference.net, false);
      for (auto& part : model.shards()) {
        auto low = part.local.clone(), high = part.local.clone();
        replicas.all_reduce(low, comm::ReduceOp::min);
        replicas.all_reduce(high, comm::ReduceOp::max);
        EXPECT_TRUE(torch::equal(low, high)) << part.name;
      }
    });
  }
}

TEST(ShardedStages, UsesLowPrecisionAndUpdatesInTheDtypeBuilt) {
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full}) {
    SCOPED_TRACE(static_cast<int>(stage));
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(), plain = make_net();
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, group, {.param_dtype = "bf16", .stage = stage});
      EXPECT_EQ(net->head->weight.scalar_type(), at::kBFloat16);
      optim::FusedStep optimizer(adam, {&model});
      auto masters = plain->parameters();
      for (int s = 0; s < 2; ++s) {
        // The same by hand: low copies of full values, gradients of both ranks' words, summed in float32.
        std::vector<Tensor> sums;
        double wanted = 0;
        for (int rank = 0; rank < 2; ++rank) {
          auto low = make_net();
          low->to(at::kBFloat16);
          auto parameters = low->parameters();
          for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(masters[i].detach().to(at::kBFloat16));
          auto loss = loss_of(low(words_of(s, rank)).to(at::kFloat), words_of(s, rank));
          if (rank == group.rank()) wanted = loss.item<double>();
          loss.backward();
          for (size_t i = 0; i < parameters.size(); ++i) {
            auto gradient = parameters[i].grad().to(at::kFloat) / 2;
            rank == 0 ? sums.push_back(gradient) : void(sums[i] += gradient);
          }
        }
        auto words = words_of(s, group.rank());
        auto loss = loss_of(forward(model, net, words).to(at::kFloat), words);
        EXPECT_EQ(loss.item<double>(), wanted);
        backward(model, loss);
        for (size_t i = 0; i < sums.size(); ++i)
          EXPECT_EQ(model.gradient_power_sum({net->parameters()[i]}, INFINITY), sums[i].abs().max().item<float>());
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_TRUE(optimizer.fused());
        auto state = model.full_state(false);
        at::NoGradGuard no_grad;
        for (size_t i = 0; i < masters.size(); ++i) {
          EXPECT_EQ(state[i].second.scalar_type(), at::kFloat);
          masters[i].copy_(state[i].second);
        }
        EXPECT_FALSE(torch::equal(masters[0], masters[0].to(at::kBFloat16).to(at::kFloat)));
      }
      for (const auto& part : model.shards()) EXPECT_EQ(part.local.scalar_type(), at::kFloat);
    });
  }
}

TEST(ShardedStages, ResidentParametersCanBeReadAnytimeButNotWritten) {
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net(true), plain = make_net(true);
    ShardedModel model(*net, group, {.stage = ShardStage::optimizer});
    EXPECT_TRUE(torch::equal(net->head->weight.detach().clone(), plain->head->weight));
    EXPECT_THROW(nn::init::zeros_(net->head->weight), UsageError);
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
