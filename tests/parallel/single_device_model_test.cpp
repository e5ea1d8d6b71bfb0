#include "parallel/single_device_model.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "parallel/replicated_models.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;

TEST(SingleDeviceModel, MovesNothingAndHoldsNothing) {
  Mlp net;
  const auto* before = net.first->weight.const_data_ptr();
  SingleDeviceModel single(net);
  EXPECT_EQ(net.first->weight.const_data_ptr(), before);
  EXPECT_EQ(single.find(net.first->weight), nullptr);
  EXPECT_TRUE(single.expects(net.first->weight));
  EXPECT_FALSE(single.expects(Mlp().first->weight));
  EXPECT_FALSE(single.has_gradient(net.first->weight));
  EXPECT_EQ(single.full_state(true).size(), 4u);
  EXPECT_EQ(single.describe(), "single: one rank, 4 trainable parameters where they lie");
}

TEST(SingleDeviceModel, ForwardsOutsideTheScopeAreSeen) {
  Mlp net, other;
  draw_parameters(net, 1);
  SingleDeviceModel single(net), bystander(other);
  const auto input = torch::randn({3, 10}, generator(2));
  const auto both = [&](const at::Tensor& loss, bool retain = false) {
    for (auto* model : {&single, &bystander}) model->before_backward();
    loss.backward({}, retain);
    for (auto* model : {&single, &bystander}) model->after_backward();
  };
  try {
    both(net.forward(input).sum());
    FAIL() << "unseen";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU151");
  }
  auto output = run(single, net, input);
  EXPECT_NO_THROW(both(output.sum(), true));
  EXPECT_NO_THROW(both(output.square().sum() + net.first->weight.square().sum())) << "several backwards of one forward";
  output.reset();  // graphs that share a living one's leaves cannot be told apart
  const auto kept = net.forward(input);
  EXPECT_NO_THROW(both(torch::ones({2}).requires_grad_().sum())) << "a graph that takes no part";
  try {
    both(kept.sum());
    FAIL() << "unseen";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU151");
  }
}

}  // namespace
}  // namespace muster::parallel
