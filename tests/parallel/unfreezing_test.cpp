#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/optim/detail/norm.h"
#include "muster/testing/compare.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"

namespace muster::parallel::unfreezing {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;

constexpr int kSteps = 6;

using Maker = std::function<std::unique_ptr<ManagedModel>(torch::nn::Module&, const Communicator&)>;

struct Way {
  std::string name;
  Maker make;
  int ranks = 2;
};

Way in_stage(std::string name, ShardStage stage) {
  return {std::move(name), [stage](torch::nn::Module& net, const Communicator& group) {
            return std::make_unique<ShardedModel>(net, group, ShardedOptions{.stage = stage});
          }};
}

Way hybrid() {
  return {"hybrid",
          [](torch::nn::Module& net, const Communicator& group) {
            std::pair<Communicator, Communicator> mine;
            for (int k = 0; k < 2; ++k) {
              auto row = group.subgroup({2 * k, 2 * k + 1}), column = group.subgroup({k, k + 2});
              if (group.rank() / 2 == k) mine.first = row;
              if (group.rank() % 2 == k) mine.second = column;
            }
            return std::make_unique<ShardedModel>(net, mine.first, mine.second, ShardedOptions{});
          },
          4};
}

Way replicated(std::string hook = "none") {
  return {"ddp", [hook](torch::nn::Module& net, const Communicator& group) {
            return std::make_unique<ReplicatedModel>(
                net, group, DdpOptions{.bucket_cap_mb = 0.0001, .comm_hook = hook, .first_bucket_mb = 0.0001});
          }};
}

std::vector<Way> all_ways() {
  return {replicated(), in_stage("zero1", ShardStage::optimizer), in_stage("zero2", ShardStage::gradients),
          in_stage("fsdp", ShardStage::full), hybrid()};
}

void set_body(Mlp& net, bool trainable) {
  for (auto& parameter : net.first->parameters()) parameter.requires_grad_(trainable);
}

/// Head alone, then all, then the head frozen.
void follow_schedule(Mlp& net, int step) {
  if (step == 0) set_body(net, false);
  if (step == 2) set_body(net, true);
  if (step == 4)
    for (auto& parameter : net.second->parameters()) parameter.requires_grad_(false);
}

std::unique_ptr<Mlp> drawn() {
  auto net = std::make_unique<Mlp>();
  draw_parameters(*net, 3);
  follow_schedule(*net, 0);
  return net;
}

torch::optim::AdamWOptions rates() { return torch::optim::AdamWOptions(1e-2).weight_decay(0.1); }

/// Each rank's part one after another, as in the mean over ranks.
std::vector<at::Tensor> alone(int ranks, int micro) {
  auto net = drawn();
  torch::optim::AdamW adam(net->parameters(), rates());
  optim::FusedStep optimizer(adam);
  for (int step = 0; step < kSteps; ++step) {
    follow_schedule(*net, step);
    std::vector<std::vector<at::Tensor>> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      for (int m = 0; m < micro; ++m)
        loss_of(net->forward(draw_part(*net, 4, step * micro + m, rank, at::kFloat))).backward();
      parts.push_back(gradients(*net));
      net->zero_grad();
    }
    auto parameters = net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parts[0][i].defined()) continue;
      auto sum = parts[0][i] * (1.0 / ranks);
      for (int rank = 1; rank < ranks; ++rank) sum = sum + parts[static_cast<size_t>(rank)][i] * (1.0 / ranks);
      parameters[i].mutable_grad() = sum;
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return values(*net);
}

std::vector<at::Tensor> together(const Way& way, const Communicator& group, int micro) {
  auto net = drawn();
  const auto model = way.make(*net, group);
  torch::optim::AdamW adam(net->parameters(), rates());
  optim::FusedStep optimizer(adam, {model.get()});
  for (int step = 0; step < kSteps; ++step) {
    follow_schedule(*net, step);
    for (int m = 0; m < micro; ++m) {
      model->set_gradient_sync(m + 1 == micro);
      const auto input = draw_part(*net, 4, step * micro + m, group.rank(), at::kFloat);
      backward(*model, loss_of(run(*model, *net, input)));
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : model->full_state(false)) all.push_back(tensor.clone());
  return all;
}

TEST(Unfreezing, GivesTheBitsOfOneProcessUnderEveryStage) {
  for (const auto& way : all_ways())
    for (const int micro : {1, 3}) {
      SCOPED_TRACE(way.name + ", " + std::to_string(micro) + " micro-batches");
      const auto wanted = alone(way.ranks, micro);
      muster::testing::run_threads(way.ranks, 7, [&](const Communicator& group) {
        at::set_num_threads(1);
        const auto got = together(way, group, micro);
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) {
          if (way.name == "hybrid")
            EXPECT_EQ(muster::testing::difference(got[i], wanted[i], 1e-5, 1e-6), "") << i;  // sums of sums
          else EXPECT_TRUE(torch::equal(got[i], wanted[i])) << i;
        }
      });
    }
}

TEST(Unfreezing, MovesNothingElse) {
  on_ranks(2, [](const Communicator& group) {
    auto net = drawn();
    const auto model = replicated().make(*net, group);
    const auto step = [&](int s) {
      backward(*model, loss_of(run(*model, *net, draw_part(*net, 4, s, group.rank(), at::kFloat))));
    };
    step(0);
    const auto& head = net->second->weight;
    const void *value = head.const_data_ptr(), *gradient = head.grad().const_data_ptr();
    const auto* local = model->find(head);
    EXPECT_EQ(model->find(net->first->weight), nullptr);
    EXPECT_TRUE(model->expects(net->first->weight));
    const auto revision = model->revision();
    set_body(*net, true);
    step(1);
    EXPECT_GT(model->revision(), revision);
    EXPECT_EQ(head.const_data_ptr(), value);
    EXPECT_EQ(head.grad().const_data_ptr(), gradient);
    EXPECT_EQ(model->find(head), local);
    const auto* added = model->find(net->first->weight);
    ASSERT_NE(added, nullptr);
    EXPECT_TRUE(net->first->weight.grad().is_alias_of(added->gradient));
    step(2);
    EXPECT_EQ(net->first->weight.grad().const_data_ptr(), added->gradient.const_data_ptr());
  });
}

TEST(Unfreezing, TheStateOfOldParametersStays) {
  on_ranks(2, [](const Communicator& group) {
    auto net = drawn();
    const auto model = replicated().make(*net, group);
    torch::optim::AdamW adam(net->second->parameters(), rates());
    optim::FusedStep optimizer(adam, {model.get()});
    const auto pass = [&](int s) {
      backward(*model, loss_of(run(*model, *net, draw_part(*net, 4, s, group.rank(), at::kFloat))));
    };
    pass(0);
    optimizer.step();
    optimizer.zero_grad();
    const auto& kept =
        dynamic_cast<torch::optim::AdamWParamState&>(*adam.state().at(net->second->weight.unsafeGetTensorImpl()));
    const auto before = kept.exp_avg().clone();
    const void* place = kept.exp_avg().const_data_ptr();
    set_body(*net, true);
    adam.add_param_group(torch::optim::OptimizerParamGroup(net->first->parameters()));
    pass(1);
    optimizer.refuse_direct_step();
    EXPECT_TRUE(torch::equal(kept.exp_avg(), before));
    optimizer.step();
    EXPECT_EQ(kept.exp_avg().const_data_ptr(), place);
    EXPECT_EQ(kept.step(), 2);
    EXPECT_EQ(
        dynamic_cast<torch::optim::AdamWParamState&>(*adam.state().at(net->first->weight.unsafeGetTensorImpl())).step(),
        1);
  });
}

/// A hook compresses from the second backward after unfreezing on.
TEST(Unfreezing, GoesWithCommunicationHooks) {
  for (const std::string hook : {"bf16", "powersgd"}) {
    SCOPED_TRACE(hook);
    const auto wanted = alone(2, 1);
    on_ranks(2, [&](const Communicator& group) {
      const auto got = together(replicated(hook), group, 1);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(muster::testing::difference(got[i], wanted[i], 0.5, 0.1), "") << i;
    });
  }
}

/// In stage full their backwards may need different gathers, which meet before they have compared.
TEST(Unfreezing, RanksThatDifferAreToldOnEveryRank) {  // MU150
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    muster::testing::run_threads(way.ranks, 7, [&](const Communicator& group) {
      auto net = drawn();
      const auto model = way.make(*net, group);
      if (group.rank() == 1) net->first->bias.requires_grad_(true);
      try {
        backward(*model, loss_of(run(*model, *net, draw_part(*net, 4, 0, group.rank(), at::kFloat))));
        ADD_FAILURE() << "no MU150 on rank " << group.rank();
      } catch (const ConfigError& error) {
        EXPECT_EQ(error.id(), "MU150") << error.what();
        EXPECT_NE(std::string(error.what()).find("unfrozen different parameters"), std::string::npos) << error.what();
      } catch (const CommError& error) {
        EXPECT_TRUE(way.name == "fsdp" || way.name == "hybrid") << error.what();
      }
    });
  }
}

void expect_other_freezing(const Way& way, const std::function<void(Mlp&)>& freeze) {
  SCOPED_TRACE(way.name);
  muster::testing::run_threads(way.ranks, 7, [&](const Communicator& group) {
    Mlp net;
    draw_parameters(net, 3);
    const auto model = way.make(net, group);
    const auto pass = [&](int step) {
      backward(*model, loss_of(run(*model, net, draw_part(net, 4, step, group.rank(), at::kFloat))));
    };
    pass(0);
    if (group.rank() == 1) freeze(net);
    try {
      pass(1);
      ADD_FAILURE() << "no MU150 on rank " << group.rank();
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU150") << error.what();
      EXPECT_NE(std::string(error.what()).find("frozen different parameters"), std::string::npos) << error.what();
    }
  });
}

TEST(Unfreezing, RanksThatFreezeOthersAreToldOnEveryRank) {  // MU150
  for (const auto& way : all_ways()) {
    expect_other_freezing(way, [](Mlp& net) { net.first->weight.requires_grad_(false); });
    expect_other_freezing(way, [](Mlp& net) { net.second->bias.requires_grad_(false); });
    expect_other_freezing(way, [](Mlp& net) { set_body(net, false); });
    expect_other_freezing(way, [](Mlp& net) {
      for (auto& parameter : net.second->parameters()) parameter.requires_grad_(false);
    });
  }
}

/// Only the backward after a change exchanges more.
TEST(Unfreezing, RanksCompareOnlyAfterAChange) {
  for (const auto& way : all_ways()) {
    if (way.ranks != 2) continue;
    SCOPED_TRACE(way.name);
    on_ranks(2, [&](const Communicator& group) {
      Mlp net;
      draw_parameters(net, 3);
      const auto model = way.make(net, group);
      std::vector<int> messages;
      group.observe([&](const comm::OperationEvent&) { ++messages.back(); });
      for (int step = 0; step < 5; ++step) {
        messages.push_back(0);
        if (step == 3) net.first->bias.requires_grad_(false);
        backward(*model, loss_of(run(*model, net, draw_part(net, 4, step, group.rank(), at::kFloat))));
      }
      EXPECT_EQ(messages[4], messages[2]);
      EXPECT_EQ(messages[3] > messages[2], way.name != "ddp");
    });
  }
}

TEST(Unfreezing, AForwardOfOneRankAloneAgreesOnNothing) {
  on_ranks(2, [](const Communicator& group) {
    auto net = drawn();
    const auto model = replicated().make(*net, group);
    const auto input = draw_part(*net, 4, 0, group.rank(), at::kFloat);
    net->first->bias.requires_grad_(true);
    if (group.rank() == 0) {
      const at::NoGradGuard no_grad;
      run(*model, *net, input);
    }
    net->first->weight.requires_grad_(true);
    backward(*model, loss_of(run(*model, *net, input)));
    EXPECT_NE(model->find(net->first->weight), nullptr);
    EXPECT_NE(model->find(net->first->bias), nullptr);
  });
}

TEST(Unfreezing, AModelThatWasFrozenWhollyIsTrained) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    muster::testing::run_threads(way.ranks, 7, [&](const Communicator& group) {
      at::set_num_threads(1);
      Mlp net, plain;
      for (auto* one : {&net, &plain}) {
        draw_parameters(*one, 3);
        for (auto& parameter : one->parameters()) parameter.requires_grad_(one == &plain);
      }
      const auto model = way.make(net, group);
      for (auto& parameter : net.parameters()) parameter.requires_grad_(true);
      backward(*model, loss_of(run(*model, net, draw_part(net, 4, 0, 0, at::kFloat))));
      loss_of(plain.forward(draw_part(net, 4, 0, 0, at::kFloat))).backward();
      std::vector<at::Tensor> all = net.parameters(), wanted;
      for (const auto& parameter : plain.parameters()) wanted.push_back(parameter.grad());
      EXPECT_NEAR(model->gradient_power_sum(all, 2), optim::power_sum(wanted, 2), 1e-4);
    });
  }
}

TEST(Unfreezing, IsMetByTheGraphCheckOfOneProcess) {
  auto net = drawn();
  SingleDeviceModel single(*net);
  set_body(*net, true);
  const auto input = draw_part(*net, 4, 0, 0, at::kFloat);
  EXPECT_NO_THROW(backward(single, loss_of(run(single, *net, input))));
  try {
    backward(single, net->first(input).sum());
    ADD_FAILURE() << "unseen";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU151");
  }
}

}  // namespace
}  // namespace muster::parallel::unfreezing
