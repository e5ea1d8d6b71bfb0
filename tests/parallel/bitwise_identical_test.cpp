// The lines of docs/concepts/bitwise_identical.md.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/testing/compare.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"

namespace muster::parallel::bitwise_identical {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;

/// How gradients of a step come.
enum class Backwards { one, window, several, retained };

/// nullopt: replicated.
using Way = std::optional<ShardStage>;
const std::vector<Way> kSharded{ShardStage::optimizer, ShardStage::gradients, ShardStage::full};

std::unique_ptr<ManagedModel> managed(const Way& way, Net& net, const Communicator& group) {
  if (!way)
    return std::make_unique<ReplicatedModel>(net, group, DdpOptions{.bucket_cap_mb = 1e-3, .first_bucket_mb = 1e-3});
  return std::make_unique<ShardedModel>(net, group, ShardedOptions{.stage = *way, .unit_min_elements = 1});
}

void compute(ManagedModel& model, Net& net, Backwards how, int step, int rank) {
  const auto loss = [&](int number) { return loss_of(run(model, net, draw_part(net, 4, number, rank, at::kFloat))); };
  if (how == Backwards::retained) {
    const auto once = loss(step);
    backward(model, once, /*retain_graph=*/true);
    return backward(model, once);
  }
  const int count = how == Backwards::one ? 1 : 3;
  for (int m = 0; m < count; ++m) {
    model.set_gradient_sync(how != Backwards::window || m + 1 == count);
    backward(model, loss(3 * step + m));
  }
}

/// The weights of rank 0 after some steps.
std::vector<at::Tensor> trained(const Way& way, int world, Backwards how) {
  std::vector<at::Tensor> weights;
  muster::testing::run_threads(world, 3, [&](Communicator group) {
    at::set_num_threads(1);
    const auto net = make_net(Kind::mlp, at::kFloat, 3);
    const auto model = managed(way, *net, group);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    optim::FusedStep optimizer(sgd, {model.get()});
    for (int step = 0; step < 6; ++step) {
      compute(*model, *net, how, step, group.rank());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& [name, value] : model->full_state(false))
      if (group.rank() == 0) weights.push_back(value.clone());
  });
  return weights;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool same = a.size() == b.size() && !a.empty();
  for (size_t i = 0; same && i < a.size(); ++i) same = muster::testing::difference_in_bits(a[i], b[i]).empty();
  return same;
}

TEST(BitwiseIdentical, OfEveryStrategyWhereAStepCommunicatesOnce) {
  for (const int world : {2, 3, 4})
    for (const auto how : {Backwards::one, Backwards::window}) {
      const auto replicated = trained(std::nullopt, world, how);
      for (const auto& way : kSharded)
        EXPECT_TRUE(same_bits(trained(way, world, how), replicated))
            << world << " ranks, stage " << static_cast<int>(*way) << ", " << static_cast<int>(how);
      EXPECT_TRUE(same_bits(trained(std::nullopt, world, how), replicated)) << "and of every run";
    }
}

/// Where the promise ends: replicated training adds to what is averaged already and averages again.
TEST(BitwiseIdentical, OfShardedStagesAloneWhereAStepCommunicatesSeveralTimes) {
  for (const int world : {2, 3})
    for (const auto how : {Backwards::several, Backwards::retained}) {
      const auto replicated = trained(std::nullopt, world, how), sharded = trained(kSharded[0], world, how);
      for (const auto& way : kSharded)
        EXPECT_TRUE(same_bits(trained(way, world, how), sharded))
            << world << " ranks, stage " << static_cast<int>(*way) << ", " << static_cast<int>(how);
      if (how == Backwards::several) {
        EXPECT_FALSE(same_bits(replicated, sharded)) << "the page says that these differ";
      }
      for (size_t i = 0; i < sharded.size(); ++i)
        EXPECT_EQ(muster::testing::difference(replicated[i], sharded[i], 1e-4, 1e-5), "") << i;
    }
}

}  // namespace
}  // namespace muster::parallel::bitwise_identical
