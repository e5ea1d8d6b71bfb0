#include "muster/parallel/capabilities.h"

#include <gtest/gtest.h>

#include "muster/testing/world.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"
#include "parallel/single_device_model.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;

TEST(Capabilities, AModelInAWorldOfOneHasNone) {
  Mlp net;
  SingleDeviceModel single(net);
  EXPECT_EQ(single.gradient_reductions(), nullptr);
  EXPECT_EQ(single.sharded_parameters(), nullptr);
  EXPECT_EQ(single.comm_hook_state(), nullptr);
  EXPECT_EQ(single.joinable(), nullptr);
  EXPECT_TRUE(single.shards().empty());
  EXPECT_EQ(single.stored_dtype(net.first->weight), net.first->weight.scalar_type());
}

TEST(Capabilities, AReplicaAveragesGradientsAndHoldsWholeParameters) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    ManagedModel& model = replicated;
    EXPECT_EQ(model.gradient_reductions(), &replicated);
    EXPECT_EQ(model.comm_hook_state(), &replicated);
    EXPECT_NE(model.joinable(), nullptr);
    EXPECT_FALSE(model.sharded());
    EXPECT_TRUE(model.shards().empty());
  });
}

TEST(Capabilities, AShardedModelShowsItsShards) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto net = make_net(Kind::mlp, at::kFloat, 3);
    ShardedModel sharded(*net, group, {.param_dtype = "bf16"});
    ManagedModel& model = sharded;
    EXPECT_EQ(model.gradient_reductions(), &sharded);
    EXPECT_EQ(model.sharded_parameters(), &sharded);
    EXPECT_EQ(model.comm_hook_state(), nullptr);
    EXPECT_NE(model.joinable(), nullptr);
    EXPECT_EQ(model.shards().size(), net->parameters().size());
    for (const auto& parameter : net->parameters()) EXPECT_EQ(model.stored_dtype(parameter), at::kFloat);
  });
}

}  // namespace
}  // namespace muster::parallel
