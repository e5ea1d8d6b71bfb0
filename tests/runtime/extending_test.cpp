#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/accelerator.h"
#include "muster/cluster/cluster.h"
#include "muster/strategy/strategy.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "ranks.h"
#include "runtime/temporary_folder.h"

namespace muster::runtime::extending {
namespace {

using muster::testing::as_ranks;

/// Reads GRID_RANK and GRID_SIZE, for ranks on one node.
std::optional<ClusterEnvironment> read_grid(const Environment& variables) {
  if (!variables.has("GRID_RANK")) return std::nullopt;
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = std::stoi(*variables.find("GRID_RANK"));
  cluster.world_size = cluster.local_world_size = std::stoi(*variables.find("GRID_SIZE"));
  cluster.rendezvous = RendezvousKind::file;
  cluster.job = "grid" + std::to_string(getppid());
  cluster.store_path = cluster.job + ".store";
  return cluster;
}

TEST(ClusterReader, MakesTheRanksOfAProgram) {
  as_ranks(2, [] {
    const auto mpi = [](const char* name) { return std::string(std::getenv(name)); };
    // The other way around than mpirun says, so that a reader that is not asked cannot pass.
    setenv("GRID_RANK", std::to_string(1 - std::stoi(mpi("OMPI_COMM_WORLD_RANK"))).c_str(), 1);
    setenv("GRID_SIZE", "2", 1);
    Accelerator accelerator({.cluster_reader = read_grid});
    EXPECT_EQ(std::to_string(accelerator.process_index()), mpi("GRID_RANK"));
    EXPECT_EQ(accelerator.num_processes(), 2);
    const auto ranks = accelerator.gather(torch::full({1}, accelerator.process_index()));
    EXPECT_EQ(ranks.sum().item<int>(), 1);
    EXPECT_NE(accelerator.plan().find("launcher: custom"), std::string::npos) << accelerator.plan();
  });
}

/// Averages each gradient by itself when backward has ended.
class Averaged : public DelegatingModel {
 public:
  Averaged(torch::nn::Module& module, const comm::Communicator& group)
      : DelegatingModel(make_strategy("auto", 1, 1)->setup_module(module, group)), group_(group), module_(module) {}
  void after_backward() override {
    DelegatingModel::after_backward();
    if (!gradient_sync()) return;
    for_each_gradient(module_.parameters(), [&](const torch::Tensor& gradient) {
      group_.all_reduce(gradient);
      torch::Tensor(gradient).div_(group_.size());
    });
  }
  std::string describe() const override { return "averaged one by one"; }

 private:
  comm::Communicator group_;
  torch::nn::Module& module_;
};

struct Averaging : TrainingStrategy {
  std::string_view name() const override { return "averaging"; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                             const comm::Communicator& group) const override {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module.parameters()) group.broadcast(parameter);
    return std::make_shared<Averaged>(module, group);
  }
};

/// Another strategy, all of whose functions are called through a wrapper.
struct Wrapping : TrainingStrategy {
  explicit Wrapping(const char* name) : inner(name) {}
  std::string_view name() const override { return "wrapping"; }
  std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                             const comm::Communicator& group) const override {
    return std::make_shared<DelegatingModel>(
        make_strategy(inner, group.size(), group.size())->setup_module(module, group));
  }
  Strategy inner;
};

/// The parameters after three steps of two micro-batches.
std::vector<torch::Tensor> trained(const Strategy& strategy) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .strategy = strategy});
  accelerator.set_seed(5, /*per_rank=*/true);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 2));
  net->to(torch::kDouble);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  for (int batch = 0; batch < 6; ++batch) {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(model(torch::randn({3, 4}, torch::kDouble)).square().mean());
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<torch::Tensor> result;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

TEST(OwnStrategy, TrainsAsReplicatedTrainingDoes) {
  as_ranks(2, [] {
    const auto expected = trained("ddp"), actual = trained(std::make_shared<Averaging>());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(muster::testing::difference(actual[i], expected[i], 0, 1e-12), "") << i;
  });
}

TEST(OwnStrategy, AWrapperChangesNoBit) {
  as_ranks(2, [] {
    for (const char* name : {"ddp", "fsdp"}) {
      const auto expected = trained(name), actual = trained(std::make_shared<Wrapping>(name));
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(muster::testing::difference_in_bits(actual[i], expected[i]), "") << name << " " << i;
    }
  });
}

/// A step that is made after loading: its gradients come from the checkpoint.
std::vector<torch::Tensor> resumed(const Strategy& strategy, const std::filesystem::path& folder) {
  std::vector<torch::Tensor> result;
  for (const bool second : {false, true}) {
    Accelerator accelerator({.strategy = strategy});
    accelerator.set_seed(5, /*per_rank=*/true);
    torch::nn::Linear net(4, 2);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    if (second) {
      accelerator.load_state(folder);
      optimizer.step();
    } else {
      accelerator.backward(model(torch::randn({3, 4})).square().mean());
      accelerator.save_state(folder);
    }
    for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  }
  return result;
}

TEST(OwnStrategy, AWrapperSavesGradientsThatNoStepHasUsed) {
  const muster::testing::InheritedFolder folder;
  as_ranks(2, [&] {
    for (const std::string name : {"ddp", "zero2", "fsdp"}) {
      const auto expected = resumed(name.c_str(), folder.path() / name);
      const auto actual = resumed(std::make_shared<Wrapping>(name.c_str()), folder.path() / ("wrapped_" + name));
      EXPECT_NE(muster::testing::difference_in_bits(expected[2], expected[0]), "") << "a step was made";
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(muster::testing::difference_in_bits(actual[i], expected[i]), "") << name << " " << i;
    }
  });
}

TEST(OwnStrategy, CountsOnOneRankToo) {
  Accelerator accelerator({.strategy = std::make_shared<Averaging>()});
  torch::nn::Linear net(2, 2);
  auto model = accelerator.prepare(net);
  EXPECT_NE(accelerator.plan().find("strategy: averaging (given by the program)"), std::string::npos);
  EXPECT_NE(accelerator.plan().find("averaged one by one"), std::string::npos);
}

TEST(OwnStrategy, WithoutAModelIsMU341) {
  struct Empty : TrainingStrategy {
    std::string_view name() const override { return "empty"; }
    std::shared_ptr<ManagedModel> setup_module(torch::nn::Module&, const comm::Communicator&) const override {
      return nullptr;
    }
  };
  Accelerator accelerator({.strategy = std::make_shared<Empty>()});
  EXPECT_EQ(muster::testing::thrown_id([&] { static_cast<void>(accelerator.prepare(torch::nn::Linear(2, 2))); }),
            "MU341");
}

}  // namespace
}  // namespace muster::runtime::extending
