#include <cstdlib>
#include <initializer_list>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hook/watched_storage.h"
#include "muster/base/error.h"
#include "optim/fused.h"
#include "parallel/sharded_model.h"
#include "parallel/sharded_models.h"

// What a sharded model refuses, by which id and in which words.

namespace muster::parallel::sharded {
namespace {

/// The id of the UsageError that f throws, and whether its message has all these words.
template <class F>
std::string refusal(F&& f, std::initializer_list<const char*> words) {
  try {
    f();
  } catch (const UsageError& error) {
    for (auto* word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in " << error.what();
    return error.id();
  }
  return "nothing thrown";
}

TEST(ShardedModel, AccessToParametersOutsideIsRefusedByName) {  // MU153 MU161 MU162 MU163 MU167
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    torch::optim::AdamW adam(net->parameters(), adamw());
    ShardedModel model(*net, group);
    auto& weight = net->encoder->layers[1]->as<nn::TransformerEncoderLayer>()->linear1->weight;
    EXPECT_EQ(refusal([&] { weight.norm(); },
                      {"encoder.layers.1.linear1.weight", "unit 'encoder.layers.1'", "aten::norm", "model.run"}),
              "MU161");
    EXPECT_EQ(refusal([&] { net(words_of(0, 0)); }, {"embed.weight", "model.run"}), "MU161");
    EXPECT_EQ(refusal([&] { nn::init::zeros_(weight); }, {"encoder.layers.1.linear1.weight", "aten::zero_"}), "MU162");
    EXPECT_EQ(refusal([&] { weight.data()[3].fill_(1); }, {"encoder.layers.1.linear1.weight"}), "MU162");
    EXPECT_EQ(refusal([&] { net->to(at::kDouble); }, {"embed.weight"}), "MU161");
    model.enter_forward();
    EXPECT_EQ(refusal(
                  [&] {
                    at::NoGradGuard no_grad;
                    weight.mul_(2);
                  },
                  {"linear1.weight"}),
              "MU162");
    model.leave_forward();
    EXPECT_EQ(torch::zeros_like(weight).sum().item<float>(), 0);
    EXPECT_EQ(weight.t().size(0), kWidth);

    auto words = words_of(0, group.rank());
    auto loss = loss_of(forward(model, net, words), words);
    EXPECT_EQ(refusal([&] { torch::autograd::grad({loss}, {net->embed->weight}, {}, true); },
                      {"embed.weight", "autograd::grad"}),
              "MU153");
    EXPECT_EQ(refusal(
                  [&] {
                    model.before_backward();
                    loss.backward({}, true, true);
                  },
                  {"create_graph", "head."}),
              "MU153");
    backward(model, loss_of(forward(model, net, words), words));
    EXPECT_EQ(refusal([&] { adam.step(); }, {"prepared optimizer", "embed.weight"}), "MU162");
    EXPECT_EQ(refusal([&] { nn::utils::clip_grad_norm_(net->parameters(), 1.0); },
                      {"accelerator.clip_grad_norm_(model", "not by torch::nn::utils::clip_grad_norm_"}),
              "MU167");
    EXPECT_EQ(refusal([&] { backward(model, loss_of(forward(model, net, words), words)); }, {}), "nothing thrown");

    net->head->bias.set_data(torch::zeros({kWords}));
    EXPECT_EQ(refusal([&] { model.enter_forward(); }, {"head.bias", "unit 'root'"}), "MU163");
  });
}

TEST(ShardedModel, GradientsThatTheProgramResetsOrAssignsAreNotOverlooked) {  // MU578 MU579
  for (const auto& options : all_stages())
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net();
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, group, options);
      optim::FusedStep optimizer(adam, {&model});
      const auto pass = [&] {
        const auto words = words_of(0, group.rank());
        backward(model, loss_of(forward(model, net, words), words));
      };
      const auto bias = [&] {
        for (const auto& [name, value] : model.full_state(false))
          if (name == "head.bias") return value;
        return at::Tensor();
      };
      pass();
      optimizer.step();
      const auto before = bias();
      net->zero_grad();
      optimizer.step();
      EXPECT_TRUE(torch::equal(bias(), before)) << "a gradient that was reset moved it";

      pass();
      net->head->bias.mutable_grad() = torch::ones({kWords});
      EXPECT_EQ(refusal([&] { optimizer.step(); }, {"head.bias", "assigned"}), "MU578");
      EXPECT_EQ(refusal([&] { model.gradient_power_sum(net->parameters(), 2); }, {"head.bias"}), "MU578");
      EXPECT_EQ(refusal(pass, {"head.bias"}), "MU578");
      EXPECT_EQ(refusal(pass, {"head.bias"}), "MU578") << "the second time it was overlooked";
      optimizer.zero_grad();

      pass();
      const auto kept = net->head->bias.grad();
      optimizer.zero_grad();
      pass();
      net->head->bias.mutable_grad() = kept;
      EXPECT_EQ(refusal([&] { optimizer.step(); }, {"head.bias"}), "MU578") << "the last gradient is gone";
      optimizer.zero_grad();

      model.set_gradient_sync(false);
      pass();
      EXPECT_EQ(refusal([&] { optimizer.step(); }, {"no_sync"}), "MU579");
      model.set_gradient_sync(true);
      pass();
      optimizer.step();
      EXPECT_FALSE(torch::equal(bias(), before)) << "what follows a refusal trains nothing";
    });
}

TEST(ShardedModel, SparseGradientsAreRefused) {  // MU154
  on_seeded_ranks(1, [&](comm::Communicator group) {
    nn::Embedding net(nn::EmbeddingOptions(9, 4).sparse(true));
    ShardedModel model(*net, group);
    model.enter_forward();
    auto loss = net(torch::tensor({1, 2})).sum();
    model.leave_forward();
    EXPECT_EQ(refusal([&] { backward(model, loss); }, {"sparse", "'weight'"}), "MU154");
  });
}

TEST(ShardedModel, ADestroyedModelSaysSo) {  // MU166
  auto net = make_net();
  { ShardedModel model(*net, comm::Communicator()); }
  EXPECT_EQ(refusal([&] { net(words_of(0, 0)); }, {"unit 'root'"}), "MU166");
}

TEST(ShardedModel, NeedsTheKeyFallback) {  // MU160
  auto net = make_net();
  setenv(hook::kStorageInterceptorsSwitch.variable, "1", 1);
  EXPECT_EQ(refusal([&] { ShardedModel model(*net, comm::Communicator()); }, {"ddp"}), "MU160");
  unsetenv(hook::kStorageInterceptorsSwitch.variable);
  EXPECT_NO_THROW(net(words_of(0, 0)));
}

TEST(ShardedModel, RanksWithOtherModulesAreToldTheFirstDifference) {  // MU150
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    if (group.rank() == 1) net->head->bias.requires_grad_(false);
    try {
      ShardedModel model(*net, group);
      ADD_FAILURE() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU150");
      EXPECT_NE(std::string(error.what()).find("head.bias"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
