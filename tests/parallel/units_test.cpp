#include "parallel/units.h"

#include "muster/parallel/wrap.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::parallel {
namespace {

namespace nn = torch::nn;

std::vector<std::string> names(const std::vector<UnitPlan>& plans) {
  std::vector<std::string> all;
  for (const auto& plan : plans) all.push_back(plan.name);
  return all;
}

std::vector<std::string> parameters(const UnitPlan& plan) {
  std::vector<std::string> all;
  for (const auto& parameter : plan.parameters) all.push_back(parameter.name);
  return all;
}

using Names = std::vector<std::string>;

struct Encoder : nn::Module {
  Encoder() {
    encoder = register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(8, 2), 3)));
    head = register_module("head", nn::Linear(8, 4));
  }
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};

TEST(Units, FindsTheLayersOfAnEncoderAndLeavesTheRestToTheRoot) {
  Encoder net;   // a plain value: no shared_ptr owns it
  auto plans = plan_units(net, true);
  EXPECT_EQ(names(plans), (Names{"root", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"head.weight", "head.bias"}));
  EXPECT_EQ(plans[1].parameters.size(), 12u);
  EXPECT_EQ(names(plan_units(net, false)), Names{"root"});
  EXPECT_EQ(plan_units(net, false)[0].parameters.size(), net.parameters().size());
}

TEST(Units, FindsRepeatedMembersWithChildrenAndSingleLayersOnlyInContainers) {
  struct Block : nn::Module {
    Block() { register_module("fc", nn::Linear(2, 2)); }
  };
  struct Net : nn::Module {
    Net() {
      register_module("a", std::make_shared<Block>());
      register_module("b", std::make_shared<Block>());
      register_module("in", nn::Linear(2, 2));
      register_module("out", nn::Linear(2, 2));
      register_module("seq", nn::Sequential(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2)));
    }
  };
  EXPECT_EQ(names(plan_units(Net(), true)), (Names{"root", "a", "b", "seq.0", "seq.2"}));
}

TEST(Units, MarksWinAndNest) {
  struct BlockImpl : nn::Module {
    BlockImpl() {
      a = register_module("a", nn::Linear(2, 2));
      b = register_module("b", wrap(nn::Linear(2, 2)));
    }
    torch::Tensor forward(const torch::Tensor& x) { return b(a(x)); }
    nn::Linear a{nullptr}, b{nullptr};
  };
  auto block = std::make_shared<BlockImpl>();
  EXPECT_TRUE(is_unit(block->b.ptr()));
  EXPECT_FALSE(is_unit(block->a.ptr()));
  nn::Sequential root(wrap(block), nn::Linear(2, 2), nn::Linear(2, 2));
  auto plans = plan_units(*root, true);
  EXPECT_EQ(names(plans), (Names{"root", "0", "0.b"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"1.weight", "1.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"0.a.weight", "0.a.bias"}));
  EXPECT_EQ(parameters(plans[2]), (Names{"0.b.weight", "0.b.bias"}));
  EXPECT_EQ(root->forward(torch::ones({1, 2})).numel(), 2);   // a mark does nothing else
}

TEST(Units, TiedParametersComeOnceAndSharedOnesGoToTheRoot) {
  nn::Linear a(4, 4), b(4, 4);
  nn::ModuleList list(a, b);
  // The same tensor under a second name in the other block.
  b->register_parameter("tied", a->weight);
  auto plans = plan_units(*list, true);
  EXPECT_EQ(names(plans), (Names{"root", "0", "1"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"0.weight"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"0.bias"}));
  EXPECT_EQ(parameters(plans[2]), (Names{"1.weight", "1.bias"}));
}

TEST(Units, OneDtypeEach) {
  nn::Sequential net(nn::Linear(2, 2), nn::BatchNorm1d(2));
  net[0]->to(torch::kDouble);
  auto plans = plan_units(*net, false);
  EXPECT_EQ(names(plans), (Names{"root", "root"}));
}

}  // namespace
}  // namespace muster::parallel
