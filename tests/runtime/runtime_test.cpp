#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/checkpoint/weights.h"
#include "muster/fabric.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

namespace F = torch::nn::functional;
using testing::as_ranks;

static_assert(std::is_base_of_v<Runtime, Accelerator> && std::is_base_of_v<Runtime, Fabric>);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 16))},
      b{register_module("b", torch::nn::Linear(16, 1))};
};
TORCH_MODULE(Net);

using Pairs = std::vector<std::tuple<torch::Tensor, torch::Tensor>>;

Pairs pairs(int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(5);
  Pairs result;
  for (int64_t i = 0; i < count; ++i) {
    auto x = torch::randn({4}, generator, torch::kDouble);
    result.emplace_back(x, x.sum().sin().view({1}));
  }
  return result;
}

/// Parameters after training with the API, with a batch of 12 over all ranks.
std::vector<torch::Tensor> trained(Strategy strategy, Precision precision, int epochs) {
  Accelerator accelerator({.mixed_precision = precision, .split_batches = true, .strategy = strategy});
  accelerator.set_seed(3);
  Net net;
  net->to(torch::kDouble);
  auto data = pairs(48);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
                          DataLoader(data, {.batch_size = 12, .seed = 9, .shuffle = true}));
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (auto& [x, y] : batches) {
      optimizer.zero_grad();
      accelerator.backward(F::mse_loss(model(x), y));
      optimizer.step();
    }
  const auto folder = testing::shared_folder(accelerator.group());
  accelerator.save_model(model, folder.path());
  std::vector<torch::Tensor> result;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

TEST(Ranks, EqualOneProcessWithTheWholeBatch) {
  const testing::InheritedFolder folder;
  const auto alone = folder.path() / "alone.safetensors";
  if (!std::getenv("MUSTER_TEST_RANK")) {
    const auto expected = trained("auto", "no", 3);
    save_file({{"0", expected[0]}, {"1", expected[1]}, {"2", expected[2]}, {"3", expected[3]}}, alone);
  }
  for (int world : {2, 3, 4})
    as_ranks(
        world,
        [&] {
          const auto actual = trained("ddp", "no", 3);
          EXPECT_EQ(read_cluster_environment().world_size, world);
          const auto expected = load_file(alone);
          for (size_t i = 0; i < actual.size(); ++i)
            EXPECT_EQ(testing::difference(actual[i], expected.at(std::to_string(i)), 0, 1e-10), "");
        },
        std::to_string(world));
}

TEST(Ranks, ShardedEqualsReplicatedToTheBit) {
  as_ranks(2, [] {
    const auto replicated = trained("ddp", "no", 2), sharded = trained("fsdp", "no", 2);
    for (size_t i = 0; i < replicated.size(); ++i)
      EXPECT_EQ(testing::difference_in_bits(sharded[i], replicated[i]), "") << i;
  });
}

TEST(Ranks, AForwardPastTheHandleIsAnError) {
  as_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    EXPECT_NE(testing::thrown_id([&, m = net]() mutable {
                accelerator.backward(m->forward(torch::ones({2, 4})).sum());
              }),
              "no error");
  });
}

TEST(Ranks, AnOptimizerOfUnpreparedParametersIsAnError) {
  as_ranks(2, [] {
    Accelerator accelerator;
    Net net, other;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(other->parameters(), 0.1));
    EXPECT_EQ(testing::thrown_id([&, o = optimizer]() mutable { o.step(); }), "MU178");
  });
}

TEST(Ranks, ModelsAndOptimizersComeInAnyOrder) {
  as_ranks(2, [] {
    Fabric fabric;
    torch::manual_seed(fabric.global_rank());  // ranks start apart; rank 0 counts
    Net net;
    auto optimizer = fabric.setup_optimizers(torch::optim::Adam(net->parameters(), 0.1));
    auto model = fabric.setup_module(net);
    const auto x = torch::full({2, 4}, 1.0f + fabric.global_rank());
    for (int step = 0; step < 2; ++step) {
      fabric.backward(model(x).sum());
      EXPECT_GT(fabric.clip_gradients(model, optimizer, {.max_norm = 1.0}), 0);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto both = fabric.all_gather(net->a->weight.detach());
    EXPECT_EQ(testing::difference_in_bits(both[0], both[1]), "");
  });
}

TEST(Ranks, ClosuresAgreeOnTheMeanLoss) {
  as_ranks(2, [] {
    Accelerator accelerator;
    accelerator.set_seed(1);
    Net net;
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::LBFGS(net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(5)));
    const auto x = torch::full({3, 4}, 0.1f * (1 + accelerator.process_index()));
    const auto y = torch::full({3, 1}, 0.3f);
    auto closure = [&, m = model, o = optimizer]() mutable {
      o.zero_grad();
      auto loss = F::mse_loss(m(x), y);
      accelerator.backward(loss);
      return loss;
    };
    const auto first = optimizer.step(closure).item<float>(), second = optimizer.step(closure).item<float>();
    EXPECT_LT(second, first);
    const auto losses = accelerator.gather(torch::tensor(second));
    EXPECT_EQ(losses[0].item<float>(), losses[1].item<float>());
    const auto weights = accelerator.gather(net->a->weight.detach().unsqueeze(0));
    EXPECT_EQ(testing::difference_in_bits(weights[0], weights[1]), "");
  });
}

TEST(Ranks, NoSyncKeepsGradientsLocalAndTheNextBackwardSums) {
  as_ranks(2, [] {
    Accelerator accelerator;
    accelerator.set_seed(1);
    Net net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    const float mine = 1.0f + accelerator.process_index();
    {
      auto quiet = accelerator.no_sync(model);
      accelerator.backward(model(torch::full({1, 4}, mine)).sum());
    }
    const auto local = accelerator.gather(net->b->bias.grad().detach().clone());
    accelerator.backward(model(torch::full({1, 4}, mine)).sum());
    EXPECT_EQ(net->b->bias.grad().item<float>(), local.sum().item<float>() / 2 + 1);
    const auto grads = accelerator.gather(net->a->weight.grad().detach().unsqueeze(0));
    EXPECT_EQ(testing::difference_in_bits(grads[0], grads[1]), "");
  });
}

TEST(Launcher, ARequestFillsADefaultAndMustNotContradict) {
  setenv("MUSTER_PRECISION", "bf16-true", 1);
  Fabric follows;
  auto model = follows.setup(Net());
  EXPECT_EQ(model->a->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(testing::thrown_id([] { Fabric fabric({.precision = "64-true"}); }), "MU171");
  unsetenv("MUSTER_PRECISION");
}

TEST(Launcher, TheBackendIsChosen) {
  as_ranks(2, [] {
    unsetenv("MUSTER_BACKEND");
    Accelerator by_default;
    EXPECT_EQ(by_default.group().backend(), "shm");
    EXPECT_NE(by_default.plan().find("backend: shm (all ranks are on one host)\n"), std::string::npos)
        << by_default.plan();
    Fabric sent({.backend = "gloo"});
    EXPECT_EQ(sent.group().backend(), "gloo");
    EXPECT_NE(sent.plan().find("backend: gloo\n"), std::string::npos) << sent.plan();
    setenv("MUSTER_BACKEND", "shm", 1);
    EXPECT_EQ(Accelerator().group().backend(), "shm");
    setenv("MUSTER_BACKEND", "pigeon", 1);
    EXPECT_EQ(testing::thrown_id([] { Accelerator accelerator; }), "MU059");
  });
}

TEST(Launcher, SumsOfTwoLevelsAreChosen) {
  as_ranks(3, [] {
    const int rank = std::atoi(getenv("OMPI_COMM_WORLD_RANK"));
    setenv("MUSTER_HOST", rank == 0 ? "left" : "right", 1);
    // 1 is lost in 2^24 + 1.
    const float values[] = {1.0f, 16777216.0f, -16777216.0f};
    for (const bool two_level : {false, true}) {
      const Accelerator accelerator({.two_level_sums = two_level});
      EXPECT_NE(accelerator.plan().find("backend: hierarchical (shared memory on each of 2 hosts"), std::string::npos)
          << accelerator.plan();
      const auto sum = torch::full({20'000}, values[rank]);
      accelerator.group().all_reduce(sum);
      EXPECT_EQ(sum[7].item<float>(), two_level ? 1.0f : 0.0f);
    }
  });
}

TEST(Launcher, ATimeOutReachesTheGroupAndTheMeeting) {
  using namespace std::chrono_literals;
  as_ranks(2, [] {
    EXPECT_EQ(Accelerator({.timeout = std::chrono::seconds(30)}).group().timeout(), std::chrono::seconds(30));
    EXPECT_EQ(Fabric({.timeout = 10min}).world_size(), 2);
    EXPECT_EQ(Accelerator({.timeout = 1h}).group().timeout(), 3600s);
    EXPECT_EQ(testing::thrown_id([] { Fabric fabric({.timeout = 0s}); }), "MU327");
    for (const char* unset : {"", "0"}) {
      setenv("MUSTER_TIMEOUT", unset, 1);
      EXPECT_EQ(Accelerator().group().timeout(), std::chrono::seconds(600));
    }
    for (const char* same : {"20s", "20"}) {
      setenv("MUSTER_TIMEOUT", same, 1);
      EXPECT_EQ(Accelerator().group().timeout(), std::chrono::seconds(20));
    }
    EXPECT_EQ(Accelerator({.timeout = std::chrono::seconds(20)}).group().timeout(), std::chrono::seconds(20));
    EXPECT_EQ(testing::thrown_id([] { Accelerator accelerator({.timeout = std::chrono::seconds(30)}); }), "MU171");
    for (const char* wrong : {"soon", "-3", "5 days", "-20s", "99999999999"}) {
      setenv("MUSTER_TIMEOUT", wrong, 1);
      EXPECT_EQ(testing::thrown_id([] { Accelerator accelerator; }), "MU021") << wrong;
    }
  });
  as_ranks(
      1,
      [] {
        ClusterEnvironment first_of_two;
        first_of_two.world_size = 2;
        testing::act_as_started_by_mpirun(first_of_two);
        EXPECT_EQ(testing::thrown([] { Accelerator accelerator({.timeout = std::chrono::seconds(1)}); }).substr(0, 50),
                  "MU057: rank 0 waited 1 s for 2 ranks to rendezvous");
      },
      "meeting");
}

TEST(Ranks, AnExceptionThatEndsARuntimeEndsItsGroup) {
  as_ranks(2, [] {
    const auto end_by_exception = [] {
      Accelerator accelerator;
      if (accelerator.process_index() == 0) accelerator.group().barrier();
      throw std::runtime_error("the user's own");
    };
    try {
      end_by_exception();
    } catch (const CommError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 34), "MU053: rank 1 ended group world, s") << error.what();
      EXPECT_NE(std::string(error.what()).find("an exception left the scope of its Accelerator or Fabric"),
                std::string::npos)
          << error.what();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the user's own");
    }
    Accelerator again;  // in the same place
    again.group().barrier();
  });
}

TEST(Launcher, SeveralDevicesWantLaunchFirst) {
  Fabric fabric({.devices = 2});
  EXPECT_EQ(testing::thrown_id([&] { fabric.setup(Net()); }), "MU172");
}

TEST(Clipping, WantsOneBound) {
  Fabric fabric;
  Net net;
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 0.1));
  fabric.backward(model(torch::ones({2, 4})).sum() * 100);
  EXPECT_EQ(testing::thrown_id([&, m = model, o = optimizer] { fabric.clip_gradients(m, o, {}); }), "MU179");
  EXPECT_EQ(testing::thrown_id(
                [&, m = model, o = optimizer] { fabric.clip_gradients(m, o, {.clip_val = 1.0, .max_norm = 1.0}); }),
            "MU179");
  fabric.clip_gradients(model, optimizer, {.clip_val = 0.5});
  EXPECT_LE(net->a->weight.grad().abs().max().item<float>(), 0.5f);
}

TEST(Clipping, NormsThatAreNotFiniteAreRefusedWhereAsked) {
  Accelerator accelerator;
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(model(torch::full({1, 4}, INFINITY)).sum());
  EXPECT_EQ(testing::thrown_id([&, m = model] { accelerator.clip_grad_norm_(m, 1.0, {.error_if_nonfinite = true}); }),
            "MU175");
}

TEST(Clipping, EqualsLibTorchForEveryNorm) {
  for (double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    Accelerator accelerator;
    torch::manual_seed(2);
    Net net;
    auto model = accelerator.prepare(net);
    accelerator.backward(model(torch::ones({2, 4})).sum());
    std::vector<torch::Tensor> copies;
    for (const auto& parameter : net->parameters()) {
      copies.push_back(parameter.detach().clone().requires_grad_());
      copies.back().mutable_grad() = parameter.grad().clone();
    }
    const double theirs = torch::nn::utils::clip_grad_norm_(copies, 0.1, p);
    EXPECT_NEAR(accelerator.clip_grad_norm_(model, 0.1, {.norm_type = p}), theirs, 1e-5 * theirs);
    for (size_t i = 0; i < copies.size(); ++i)
      EXPECT_EQ(testing::difference(net->parameters()[i].grad(), copies[i].grad()), "");
  }
}

TEST(Plan, NamesTheDecisions) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  auto model = accelerator.prepare(Net());
  const auto plan = accelerator.plan();
  for (const char* word : {"ranks: 1", "cpu", "bf16-mixed", "single", "threads"})
    EXPECT_NE(plan.find(word), std::string::npos) << word << " in\n" << plan;
}

}  // namespace
}  // namespace muster
