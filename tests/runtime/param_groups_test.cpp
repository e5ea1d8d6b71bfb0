#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/comm/communicator.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster::staged {
namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear body{register_module("body", torch::nn::Linear(6, 10))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(10, 3))};
  torch::Tensor forward(torch::Tensor x) { return head(torch::tanh(body(x))); }
};
TORCH_MODULE(Net);

void set_trainable(torch::nn::Module& module, bool on) {
  for (auto& parameter : module.parameters()) parameter.requires_grad_(on);
}

Net make() {
  torch::manual_seed(1);
  Net net;
  set_trainable(*net->body, false);
  return net;
}

torch::optim::OptimizerParamGroup group_of(torch::nn::Module& module, double rate) {
  return {module.parameters(), std::make_unique<torch::optim::AdamWOptions>(rate)};
}

torch::Tensor input_of(int step, int rank) {
  return torch::cos(torch::arange(24, torch::kFloat) * (step + 2) + 5 * rank).view({4, 6});
}

/// Two steps of the head, two of all with a group of its own for the body.
std::vector<torch::Tensor> train(const Strategy& strategy, bool unfreeze_first) {
  Accelerator accelerator({.strategy = strategy});
  auto net = make();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->head->parameters(), 1e-2));
  for (int step = 0; step < 4; ++step) {
    if (step == 2 && unfreeze_first) set_trainable(*net->body, true);
    if (step == 2) optimizer.add_param_group(group_of(*net->body, 1e-3));
    if (step == 2) set_trainable(*net->body, true);
    accelerator.backward(model(input_of(step, accelerator.process_index())).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<torch::Tensor> all;
  for (const auto& [name, tensor] : model.prepared()->managed->full_state(false)) all.push_back(tensor.clone());
  return all;
}

/// The mean of two ranks, by LibTorch alone.
std::vector<torch::Tensor> plain() {
  auto net = make();
  torch::optim::AdamW adam(net->head->parameters(), 1e-2);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      set_trainable(*net->body, true);
      adam.add_param_group(group_of(*net->body, 1e-3));
    }
    for (int rank = 0; rank < 2; ++rank) (net(input_of(step, rank)).square().mean() / 2).backward();
    adam.step();
    adam.zero_grad();
  }
  return net->parameters();
}

TEST(ParamGroups, AreTrainedFromTheNextStepUnderEveryStrategy) {
  testing::as_ranks(2, [] {
    const auto wanted = plain();
    const auto first = train("ddp", true);
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"})
      for (const bool unfreeze_first : {true, false}) {
        const auto got = train(strategy, unfreeze_first);
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(testing::difference(got[i], wanted[i], 1e-5, 1e-6), "") << strategy << " " << i;
          EXPECT_TRUE(torch::equal(got[i], first[i])) << strategy << " " << i;
        }
      }
  });
}

std::string id_of(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return std::string(error.id());
  }
  return "nothing";
}

TEST(ParamGroups, RefusedOnesAreNamed) {  // MU332 MU333
  Accelerator accelerator;
  auto net = make();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->head->parameters(), 1e-2));
  EXPECT_EQ(
      id_of([&, &optimizer = optimizer] { optimizer.add_param_group({net->head->parameters()}); }, "'head.weight'"),
      "MU332");
  const auto of_sgd = [&, &optimizer = optimizer] {
    optimizer.add_param_group({net->body->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1)});
  };
  EXPECT_EQ(id_of(of_sgd, "another class"), "MU333");
  auto lbfgs = accelerator.prepare(torch::optim::LBFGS(net->head->parameters(), 1.0));
  EXPECT_EQ(id_of([&] { lbfgs.add_param_group({net->body->parameters()}); }, "LBFGS"), "MU332");
  const auto body = net->body->parameters();
  EXPECT_EQ(id_of(
                [&, &optimizer = optimizer] {
                  optimizer.add_param_group({{body[0], body[1], body[0]}});
                },
                "twice"),
            "MU332");
  EXPECT_EQ(id_of([&, &optimizer = optimizer] { optimizer.add_param_group({{net->head->weight * 2}}); }, "computation"),
            "MU332");
  EXPECT_EQ(id_of([&, &optimizer = optimizer] { optimizer.add_param_group({{torch::Tensor()}}); }, "undefined"),
            "MU332");
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
}

TEST(ParamGroups, RanksThatAddOthersAreTold) {  // MU150
  testing::as_ranks(2, [] {
    Accelerator accelerator({.strategy = "ddp"});
    auto net = make();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->head->parameters(), 1e-2));
    const double rate = accelerator.is_main_process() ? 1e-3 : 1e-4;
    EXPECT_EQ(id_of([&, &optimizer = optimizer] { optimizer.add_param_group(group_of(*net->body, rate)); },
                    "different parameter groups"),
              "MU150");
    const auto decay = [&] {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(1e-3).weight_decay(accelerator.is_main_process() ? 0 : 0.5));
    };
    EXPECT_EQ(id_of(
                  [&, &optimizer = optimizer] {
                    optimizer.add_param_group({net->body->parameters(), decay()});
                  },
                  "with other options"),
              "MU150");
    EXPECT_EQ(optimizer.param_groups().size(), 1u);
  });
}

TEST(ParamGroups, RanksThatPrepareOtherOptionsAreTold) {  // MU150
  testing::as_ranks(2, [] {
    for (const char* strategy : {"ddp", "fsdp"}) {
      Accelerator accelerator({.strategy = strategy});
      auto net = make();
      auto model = accelerator.prepare(net);
      const bool main = accelerator.is_main_process();
      const auto prepare = [&](const torch::optim::AdamWOptions& options) {
        return [&, options] { accelerator.prepare(torch::optim::AdamW(net->head->parameters(), options)); };
      };
      EXPECT_EQ(
          id_of(prepare(main ? 1e-3 : 1e-4), "rank 0 has group 0 with lr = 0.001, rank 1 has group 0 with lr = 0.0001"),
          "MU150");
      EXPECT_EQ(id_of(prepare(torch::optim::AdamWOptions(1e-3).betas({0.9, main ? 0.5 : 0.75})),
                      "rank 0 has group 0 with betas = (0.9, 0.5), rank 1 has group 0 with betas = (0.9, 0.75)"),
                "MU150");
      EXPECT_EQ(id_of(prepare(torch::optim::AdamWOptions(1e-3).amsgrad(main)), "amsgrad = true"), "MU150");
      const auto some = [&] {
        std::vector<torch::optim::OptimizerParamGroup> groups{{{net->head->weight}}};
        if (main) groups.push_back({{net->head->bias}});
        accelerator.prepare(torch::optim::SGD(groups, torch::optim::SGDOptions(0.1)));
      };
      EXPECT_EQ(id_of(some, "rank 0 has 2 parameter groups, rank 1 has 1 parameter group"), "MU150");
      EXPECT_NO_THROW(prepare(1e-3)());
    }
  });
}

TEST(ParamGroups, AreComparedInOneExchange) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.strategy = "ddp"});
    auto net = make();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->head->parameters(), 1e-2));
    int messages = 0;
    accelerator.group().observe([&](const comm::OperationEvent&) { ++messages; });
    accelerator.group().all_gather_bytes("as many as this");
    const int once = std::exchange(messages, 0);
    optimizer.add_param_group(group_of(*net->body, 1e-3));
    EXPECT_EQ(messages, once);
  });
}

/// A run that may have added the group of the body, before it saves or loads.
struct Job {
  Accelerator accelerator;
  Net net = make();
  Model<NetImpl> model;
  Optimizer optimizer;
  explicit Job(bool added)
      : model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(torch::optim::AdamW(net->head->parameters(), 1e-2))) {
    if (!added) return;
    set_trainable(*net->body, true);
    optimizer.add_param_group(group_of(*net->body, 1e-3));
  }
};

TEST(ParamGroups, ACheckpointWithOthersNamesTheOneThatLacks) {  // MU331
  const testing::TemporaryFolder folder;
  const auto few = (folder.path() / "few").string(), many = (folder.path() / "many").string();
  Job(false).accelerator.save_state(few);
  Job(true).accelerator.save_state(many);
  EXPECT_EQ(id_of([&] { Job(false).accelerator.load_state(many); }, "the optimizer lacks group 1"), "MU331");
  EXPECT_EQ(id_of([&] { Job(false).accelerator.load_state(many); }, "'body.weight'"), "MU331");
  EXPECT_EQ(id_of([&] { Job(true).accelerator.load_state(few); }, "the checkpoint lacks group 1"), "MU331");
  EXPECT_NO_THROW(Job(true).accelerator.load_state(many));
}

}  // namespace
}  // namespace muster::staged
