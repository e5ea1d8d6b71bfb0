#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/weights.h"
#include "muster/fabric.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

/// Sizes that are no multiples of anything, and a frozen parameter.
struct SmallNetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("inner", torch::nn::Linear(7, 19))},
      out{register_module("out", torch::nn::Linear(19, 3))};
  SmallNetImpl() { out->bias.requires_grad_(false); }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
};
TORCH_MODULE(SmallNet);

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

struct SmallCourse {
  Strategy strategy = "ddp";
  int steps = 4;  ///< of which a resumed course skips the first two
  std::filesystem::path load = {}, save = {};
};

at::Tensor small_inputs(int step, int rank) {
  return torch::cos(torch::arange(28, torch::kFloat) * (step + 2) + 5 * rank).view({4, 7});
}
at::Tensor small_loss(const at::Tensor& answer) { return answer.pow(2).mean() + answer.sum() * 0.01; }

Weights train_small(const SmallCourse& course) {
  torch::manual_seed(3);
  Accelerator accelerator({.strategy = course.strategy});
  SmallNet net;
  auto [model, optimizer] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)));
  if (!course.load.empty()) accelerator.load_state(course.load);
  for (int step = course.load.empty() ? 0 : 2; step < course.steps; ++step) {
    accelerator.backward(small_loss(model(small_inputs(step, accelerator.process_index())).to(at::kFloat)));
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (step == 1 && !course.save.empty()) accelerator.save_state(course.save);
  }
  return model.prepared()->managed->full_state(false);
}

void expect_bits(const Weights& actual, const Weights& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(actual[i].second, expected[i].second), "") << actual[i].first;
}

double gap_between(const Weights& one, const Weights& other) {
  double gap = 0;
  for (size_t i = 0; i < one.size(); ++i)
    gap = std::max(gap, (one[i].second - other.at(i).second).abs().max().item<double>());
  return gap;
}

TEST(HybridSharding, EqualsReplicatedTrainingAndIsSavedLikeIt) {
  testing::as_ranks(4, [] {
    const Accelerator first;
    const auto folder = testing::shared_folder(first.group());
    const auto whole = train_small({.strategy = "ddp"});
    for (const int group_size : {2, 1}) {
      SCOPED_TRACE(group_size);
      const Strategy hybrid = FSDP{.shard_group_size = group_size};
      const auto saved = folder.path() / std::to_string(group_size);
      const auto trained = train_small({.strategy = hybrid, .save = saved});
      EXPECT_LT(gap_between(trained, whole), 1e-5);  // four ranks' gradients are summed in another order
      const auto at_save = train_small({.strategy = hybrid, .steps = 2});
      for (const Strategy& strategy : {hybrid, Strategy("fsdp"), Strategy("zero1"), Strategy("ddp")}) {
        SCOPED_TRACE(std::string(strategy.name()));
        expect_bits(train_small({.strategy = strategy, .steps = 2, .load = saved}), at_save);
        EXPECT_LT(gap_between(train_small({.strategy = strategy, .load = saved}), trained), 1e-5);
      }
      expect_bits(train_small({.strategy = hybrid, .load = saved}), trained);
    }
    first.wait_for_everyone();
  });
}

TEST(HybridSharding, TakesSeveralModelsAndStages) {
  testing::as_ranks(4, [] {
    Accelerator accelerator({.strategy = FSDP{.shard_group_size = 2, .stage = ShardStage::gradients}});
    SmallNet one, other;
    auto first = accelerator.prepare(one);
    auto second = accelerator.prepare(other);
    auto optimizer = accelerator.prepare(torch::optim::SGD(one->parameters(), 0.1));
    accelerator.backward(small_loss(first(small_inputs(0, accelerator.process_index()))) +
                         second(small_inputs(1, 0)).sum() * 0);
    optimizer.step();
    EXPECT_NE(accelerator.plan().find("2 replicas of 2 shards"), std::string::npos) << accelerator.plan();
    const auto folder = testing::shared_folder(accelerator.group());
    accelerator.save_model(first, folder.path());
    const auto written = load_file(folder.path());
    for (const auto& [name, tensor] : first.prepared()->managed->full_state(false))
      EXPECT_TRUE(torch::equal(written.at(name), tensor)) << name;
    accelerator.wait_for_everyone();
  });
}

TEST(HybridSharding, TheNameCutsOverTheRanksOfANode) {
  testing::as_ranks(2, [] {
    Accelerator accelerator({.strategy = "hsdp"});
    SmallNet net;
    const auto model = accelerator.prepare(net);
    EXPECT_NE(accelerator.plan().find("strategy: hsdp"), std::string::npos) << accelerator.plan();
  });
}

TEST(ReshardAfterForward, ToNeighboursGivesTheSameBits) {
  testing::as_ranks(4, [] {
    const Accelerator first;
    const auto freed = train_small({.strategy = "fsdp"});
    expect_bits(train_small({.strategy = FSDP{.reshard_after_forward = 2}}), freed);
    expect_bits(train_small({.strategy = FSDP{.reshard_after_forward = 1}}), freed);
    Accelerator uneven({.strategy = FSDP{.reshard_after_forward = 3}});  // if it were thrown out, late ranks had MU053
    EXPECT_EQ(testing::thrown_id([&] { uneven.prepare(SmallNet()); }), "MU168");
  });
}

/// What mixed precision meets in programs: norms with running statistics, a buffer that is computed with.
struct NormedNetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(1, 5, 3))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(5))};
  torch::nn::InstanceNorm2d instance{register_module(
      "instance",
      torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(5).affine(true).track_running_stats(true)))};
  torch::nn::LayerNorm layer{register_module("layer", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(20, 3))};
  at::Tensor shift = register_buffer("shift", torch::linspace(0, 1, 5).view({5, 1, 1}) / 3);
  at::ScalarType seen = at::kFloat;
  at::Tensor forward(const at::Tensor& x) {
    seen = x.scalar_type();
    return out(layer(instance(norm(conv(x))) + shift).mean(2).flatten(1));
  }
};
TORCH_MODULE(NormedNet);

at::Tensor pictures(int rank) {
  return torch::sin(torch::arange(4 * 36, torch::kFloat) * (rank + 2)).view({4, 1, 6, 6});
}

TEST(MixedDtypes, WorkWithNormsAndBuffersAndAreSavedAsBuilt) {
  for (const int ranks : {1, 2})
    testing::as_ranks(
        ranks,
        [] {
          const Accelerator first;
          const auto folder = testing::shared_folder(first.group());
          for (const auto stage : {ShardStage::full, ShardStage::optimizer})
            for (const char* dtype : {"bf16", "f16"}) {
              SCOPED_TRACE(dtype);
              Weights trained;
              torch::manual_seed(5);
              const Strategy strategy =
                  FSDP{.buffer_dtype = dtype, .output_dtype = "f32", .param_dtype = dtype, .stage = stage};
              const auto low = std::string(dtype) == "bf16" ? at::kBFloat16 : at::kHalf;
              {
                Accelerator accelerator({.strategy = strategy});
                NormedNet net;
                const auto shift = net->shift.clone();
                auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
                const auto answer = model(pictures(accelerator.process_index()));
                EXPECT_EQ(answer.scalar_type(), at::kFloat);
                EXPECT_EQ(net->seen, low);
                EXPECT_EQ(net->shift.scalar_type(), low);
                EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
                EXPECT_EQ(net->norm->weight.scalar_type(), at::kFloat);
                EXPECT_EQ(net->layer->weight.scalar_type(), low);
                accelerator.backward(answer.pow(2).mean());
                optimizer.step();
                accelerator.save_state(folder.path() / "state");
                accelerator.save_model(model, folder.path() / "model");
                trained = model.prepared()->managed->full_state(false);
                for (const auto& [name, tensor] : trained) {
                  EXPECT_TRUE(!tensor.is_floating_point() || tensor.scalar_type() == at::kFloat) << name;
                  EXPECT_TRUE(name != "shift" || torch::equal(tensor, shift.to(low).to(at::kFloat)));
                }
              }
              const auto expect_loaded = [&](const Weights& loaded) {
                if (first.is_main_process()) expect_bits(loaded, trained);  // running statistics were each rank's own
              };
              for (const Strategy& other : {strategy, Strategy("ddp"), Strategy("fsdp")}) {
                Accelerator accelerator({.strategy = other});
                NormedNet net;
                auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
                accelerator.load_state(folder.path() / "state");
                expect_loaded(model.prepared()->managed->full_state(false));
              }
              Fabric fabric({.strategy = strategy});
              fabric.launch();
              NormedNet net;
              auto model = fabric.setup(net);
              fabric.load_raw(folder.path() / "model", model);
              expect_loaded(model.prepared()->managed->full_state(false));
              first.wait_for_everyone();
            }
        },
        std::to_string(ranks));
}

TEST(MixedDtypes, LeaveInputsAloneWhereTheyAreToldTo) {
  testing::as_ranks(2, [] {
    Accelerator accelerator(
        {.strategy = FSDP{.buffer_dtype = "bf16", .cast_forward_inputs = false, .param_dtype = "bf16"}});
    NormedNet net;
    auto model = accelerator.prepare(net);
    EXPECT_EQ(model(pictures(0).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
    EXPECT_ANY_THROW(model(pictures(0)));
  });
}

/// Through one of the APIs.
template <class Api>
void expect_full_parameters(Api& api, const Model<SmallNetImpl>& model, SmallNet& net, int rank) {
  const auto before = model.prepared()->managed->full_state(false);
  double sum = 0;
  api.summon_full_params(model, [&] { sum = net->in->weight.sum().template item<double>(); }, {.writeback = false});
  EXPECT_NEAR(sum, before[0].second.sum().item<double>(), 1e-5);
  EXPECT_EQ(testing::thrown_id([&] {
              api.summon_full_params(model, [&] { torch::nn::init::zeros_(net->out->weight); }, {.writeback = false});
            }),
            "MU190");
  api.summon_full_params(model,
                         [&] {
                           if (rank == 0) torch::nn::init::constant_(net->out->weight, 2);
                         },
                         {.rank0_only = true});
  const auto after = model.prepared()->managed->full_state(false);
  EXPECT_EQ(testing::difference_in_bits(after[0].second, before[0].second), "");
  EXPECT_EQ(after[2].second.sum().item<double>(), 2 * 57);
}

TEST(FullParameters, AreSummonedThroughEachApi) {
  testing::as_ranks(2, [] {
    for (const char* strategy : {"fsdp", "zero2", "ddp"}) {
      SCOPED_TRACE(strategy);
      Accelerator accelerator({.strategy = strategy});
      SmallNet net;
      const auto model = accelerator.prepare(net);
      if (std::string(strategy) != "ddp") {
        expect_full_parameters(accelerator, model, net, accelerator.process_index());
        continue;
      }
      int calls = 0;
      accelerator.summon_full_params(model, [&] { ++calls; });
      EXPECT_EQ(calls, 1);
    }
    Fabric fabric({.strategy = "fsdp"});
    fabric.launch();
    SmallNet net;
    const auto model = fabric.setup(net);
    expect_full_parameters(fabric, model, net, fabric.global_rank());
  });
}

TEST(FullParameters, AreMissedByLibTorchsOwnSave) {
  testing::as_ranks(2, [] {
    const Accelerator first;
    const auto folder = testing::shared_folder(first.group());
    const auto file = (folder.path() / std::to_string(first.process_index())).string();
    for (const char* strategy : {"fsdp", "zero1"}) {
      SCOPED_TRACE(strategy);
      Accelerator accelerator({.strategy = strategy});
      SmallNet net;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      accelerator.backward(small_loss(model(small_inputs(0, first.process_index()))));
      optimizer.step();                                                       // zero1 gathers now
      const auto of_save = testing::thrown([&] { torch::save(net, file); });  // zero1 waits for what is gathered
      EXPECT_TRUE(of_save.starts_with(std::string(strategy) == "fsdp" ? "MU161" : "no error")) << of_save;
      const auto of_clone = testing::thrown([&] { net->in->clone(); });
      EXPECT_TRUE(std::string(strategy) != "fsdp" || of_clone.starts_with("MU161")) << of_clone;
      accelerator.summon_full_params(model, [&] { torch::save(net, file); }, {.writeback = false});
      SmallNet loaded;
      torch::load(loaded, file);
      const auto expected = model.prepared()->managed->full_state(false);
      for (const auto& [name, tensor] : expected)
        EXPECT_TRUE(torch::equal(loaded->named_parameters()[name], tensor)) << name;
    }
    first.wait_for_everyone();
  });
}

struct SharedWeight : torch::nn::Module {
  explicit SharedWeight(const at::Tensor& weight) { register_parameter("weight", weight); }
};

/// Weights that are tied, lie transposed, have no elements, and stay whole.
struct OddNetImpl : torch::nn::Module {
  torch::nn::Linear one{register_module("one", torch::nn::Linear(9, 11))},
      ignored{register_module("ignored", torch::nn::Linear(2, 3))};
  at::Tensor none = register_parameter("none", torch::zeros({0, 4}));
  at::Tensor count = register_buffer("count", torch::arange(5));
  OddNetImpl() {
    const torch::NoGradGuard no_grad;
    one->weight.set_data(one->weight.t().contiguous().t());
    register_module("two", std::make_shared<SharedWeight>(one->weight));
  }
};
TORCH_MODULE(OddNet);

TEST(SavedWeights, AreGatheredTensorByTensor) {
  testing::as_ranks(2, [] {
    for (const char* strategy : {"fsdp", "zero1", "ddp"}) {
      SCOPED_TRACE(strategy);
      Accelerator accelerator({.strategy = std::string(strategy) == "fsdp"
                                               ? Strategy(FSDP{.ignored_modules = {"ignored"}})
                                               : Strategy(strategy)});
      const auto folder = testing::shared_folder(accelerator.group());
      torch::manual_seed(4);  // what is ignored is each rank's own
      OddNet net;
      const auto model = accelerator.prepare(net);
      std::atomic<int64_t> most{0};
      accelerator.group().observe(
          [&](const comm::OperationEvent& event) { most = std::max(most.load(), event.bytes); });
      accelerator.save_model(model, folder.path(), {.max_shard_size = 450});
      EXPECT_LT(most, 100 * 4);  // of the largest parameter
      accelerator.group().observe([](const comm::OperationEvent&) {});
      const auto written = load_file(folder.path());
      const auto expected = model.prepared()->managed->full_state(false);
      EXPECT_EQ(written.tensors.size(), expected.size() - 1);
      EXPECT_EQ(written.metadata.at("two.weight"), "one.weight");
      for (const auto& [name, tensor] : expected) {
        if (name == "two.weight") continue;
        EXPECT_EQ(testing::difference_in_bits(written.at(name), tensor.contiguous()), "") << name;
      }
      const auto file = folder.path() / "file";
      if (accelerator.is_main_process()) std::ofstream(file) << "no folder";
      accelerator.wait_for_everyone();
      const auto thrown = testing::thrown([&] { accelerator.save_model(model, file / "weights"); });
      EXPECT_NE(thrown.find("MU202"), std::string::npos) << thrown;
      accelerator.wait_for_everyone();
    }
  });
}

/// The bare module's parameters right after a step, while full values are under way.
TEST(Values, OfAParameterWaitForTheGatherUnderWay) {
  testing::as_ranks(2, [] {
    for (const auto stage : {ShardStage::optimizer, ShardStage::gradients}) {
      SCOPED_TRACE(static_cast<int>(stage));
      Accelerator accelerator({.strategy = FSDP{.one_copy_per_host = false, .stage = stage}});
      SmallNet net;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      const auto weight = net->in->weight.detach().view({1, -1});
      std::vector<std::function<at::Tensor()>> functions{
          [&] { return accelerator.gather(weight)[1]; },
          [&] { return accelerator.gather(net->in->weight).narrow(0, 19, 19).reshape(-1); },
          [&] { return accelerator.gather_for_metrics(weight)[1]; },
          [&] { return accelerator.reduce(weight, "max")[0]; },
          [&] { return accelerator.broadcast(weight, 1)[0]; },
          [&] { return accelerator.pad_across_processes(weight)[0].clone(); },
          [&] { return accelerator.gather_object(weight)[1][0]; },
          [&] { return accelerator.broadcast_object(weight, 1)[0]; },
          [&] { return accelerator.group().all_gatherv(weight)[1][0]; },
          [&] {
            return accelerator.group().scatter(
                accelerator.is_main_process() ? std::vector<at::Tensor>{weight, weight} : std::vector<at::Tensor>(),
                0)[0];
          },
          [&] {
            return accelerator.group().all_to_all({weight, weight})[1][0];
          },
      };
      for (size_t i = 0; i < functions.size(); ++i) {
        accelerator.backward(small_loss(model(small_inputs(static_cast<int>(i), accelerator.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
        EXPECT_EQ(testing::thrown_id([&] { accelerator.group().broadcast(weight, 0); }), "MU066");
        const auto brought = functions[i]();
        EXPECT_EQ(testing::difference_in_bits(brought, net->in->weight.detach().reshape(-1).clone()), "") << i;
      }
    }
  });
}

}  // namespace
}  // namespace muster
