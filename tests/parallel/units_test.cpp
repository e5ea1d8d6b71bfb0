#include "parallel/sharded/units.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/parallel/wrap.h"

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
    encoder = register_module(
        "encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(8, 2), 3)));
    head = register_module("head", nn::Linear(8, 4));
  }
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};

TEST(Units, FindsTheLayersOfAnEncoderAndLeavesTheRestToTheRoot) {
  Encoder net;  // a plain value: no shared_ptr owns it
  auto plans = plan_units(net, {});
  EXPECT_EQ(names(plans), (Names{"root", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"head.weight", "head.bias"}));
  EXPECT_EQ(plans[1].parameters.size(), 12u);
  EXPECT_EQ(names(plan_units(net, {.auto_wrap = false})), Names{"root"});
  EXPECT_EQ(plan_units(net, {.auto_wrap = false})[0].parameters.size(), net.parameters().size());
}

TEST(Units, FindsRepeatedMembersWithChildrenAndSingleLayersOnlyInContainers) {
  struct Block : nn::Module {
    Block() { register_module("fc", nn::Linear(2, 2)); }
  };
  struct Net : nn::Module {
    Net() {
      register_module("a", std::make_shared<Block>());
      register_module("b", std::make_shared<Block>());
      register_module("in", nn::Linear(2, 1));
      register_module("out", nn::Linear(2, 1));
      register_module("seq", nn::Sequential(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2)));
    }
  };
  EXPECT_EQ(names(plan_units(Net(), {})), (Names{"root", "a", "b", "seq.0", "seq.2"}));
}

TEST(Units, LayersBesideTheBlocksThatAreAsLargeAsOneAreUnitsUnlessTheyShareParameters) {
  struct Head : nn::Module {
    explicit Head(at::Tensor weight) { register_parameter("weight", std::move(weight)); }
  };
  struct Net : nn::Module {
    explicit Net(bool tied) {
      auto table = register_module("table", nn::Embedding(3, 2));
      register_module("small", nn::Linear(2, 1));
      register_module("blocks", nn::Sequential(nn::Linear(2, 2), nn::Linear(2, 2)));
      register_module("head", std::make_shared<Head>(tied ? table->weight : torch::ones({3, 2})));
    }
  };
  EXPECT_EQ(names(plan_units(Net(false), {})), (Names{"root", "table", "blocks.0", "blocks.1", "head"}));
  const auto tied = plan_units(Net(true), {});
  EXPECT_EQ(names(tied), (Names{"root", "blocks.0", "blocks.1"}));
  EXPECT_EQ(parameters(tied[0]), (Names{"table.weight", "small.weight", "small.bias"}));
  EXPECT_EQ(names(plan_units(Net(false), {.unit_names = {"blocks.0"}})), (Names{"root", "blocks.0"}));
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
  EXPECT_TRUE(is_unit(*block->b));
  EXPECT_FALSE(is_unit(*block->a));
  nn::Sequential root(wrap(block), nn::Linear(2, 2), nn::Linear(2, 2));
  auto plans = plan_units(*root, {});
  EXPECT_EQ(names(plans), (Names{"root", "0", "0.b"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"1.weight", "1.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"0.a.weight", "0.a.bias"}));
  EXPECT_EQ(parameters(plans[2]), (Names{"0.b.weight", "0.b.bias"}));
  EXPECT_EQ(root->forward(torch::ones({1, 2})).numel(), 2);  // a mark does nothing else
}

TEST(Units, AMarkIsTheModulesWhereverItComesFrom) {
  struct Net : nn::Module {
    nn::Linear a{register_module("a", nn::Linear(2, 2))}, b{register_module("b", nn::Linear(2, 2))};
    nn::Sequential row{register_module("row", nn::Sequential(nn::Linear(2, 2), nn::ReLU(), nn::Linear(2, 2)))};
    nn::ModuleList list{register_module("list", nn::ModuleList(nn::Linear(2, 2), nn::Linear(2, 2)))};
  };
  Net net;
  net.a = wrap(net.a);    // a member, after it was registered
  wrap(net.row->ptr(2));  // an element
  for (auto& layer : *net.list) layer = wrap(layer);
  EXPECT_EQ(names(plan_units(net, {})), (Names{"root", "a", "row.2", "list.0", "list.1"}));
  EXPECT_EQ(take_lost_marks(), Names());
}

TEST(Units, AMarkEndsWithItsModule) {
  auto block = std::make_shared<nn::LinearImpl>(2, 2);
  const auto* place = block.get();
  wrap(block);
  EXPECT_TRUE(is_unit(*place));
  auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(block->clone());
  EXPECT_FALSE(is_unit(*copy));
  block.reset();
  EXPECT_FALSE(is_unit(*copy));
  EXPECT_EQ(take_lost_marks(), Names()) << "what is gone is not missed";
}

TEST(Units, MarksThatReachNoModelAreNamedOnce) {
  nn::Sequential root(nn::Linear(2, 2), nn::Linear(2, 2));
  const auto stray = wrap(std::dynamic_pointer_cast<nn::LinearImpl>(root->ptr(1)->clone()));
  wrap(root->ptr(0));
  EXPECT_EQ(names(plan_units(*root, {})), (Names{"root", "0"}));
  EXPECT_EQ(take_lost_marks(), (Names{"torch::nn::LinearImpl"}));
  EXPECT_EQ(take_lost_marks(), Names());
}

TEST(Units, TiedParametersComeOnceAndSharedOnesGoToTheRoot) {
  nn::Linear a(4, 4), b(4, 4);
  nn::ModuleList list(a, b);
  // The same tensor under a second name in the other block.
  b->register_parameter("tied", a->weight);
  auto plans = plan_units(*list, {});
  EXPECT_EQ(names(plans), (Names{"root", "0", "1"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"0.weight"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"0.bias"}));
  EXPECT_EQ(parameters(plans[2]), (Names{"1.weight", "1.bias"}));
}

/// Two units that share a parameter, in a unit round both.
struct PairImpl : nn::Module {
  PairImpl() {
    a = register_module("a", wrap(nn::Linear(4, 4)));
    b = register_module("b", wrap(nn::Linear(4, 4)));
    b->register_parameter("tied", a->weight);
    own = register_parameter("own", torch::ones({3}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b(a(x)); }
  nn::Linear a{nullptr}, b{nullptr};
  torch::Tensor own;
};

TEST(Units, SharedParametersGoToTheInnermostUnitRoundAllTheirPlaces) {
  nn::Sequential root;
  root->push_back("first", nn::Linear(2, 2));
  root->push_back("pair", wrap(std::make_shared<PairImpl>()));
  const auto plans = plan_units(*root, {});
  EXPECT_EQ(names(plans), (Names{"root", "pair", "pair.a", "pair.b"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"pair.own", "pair.a.weight"}));
  EXPECT_EQ(parameters(plans[2]), (Names{"pair.a.bias"}));
  EXPECT_EQ(parameters(plans[3]), (Names{"pair.b.weight", "pair.b.bias"}));
}

TEST(Units, AUnitUsedInTwoPlacesKeepsItsParameters) {
  struct Twice : nn::Module {
    Twice() {
      const auto shared = wrap(nn::Linear(2, 2));
      for (const char* name : {"left", "right"}) {
        auto part = std::make_shared<nn::Module>();
        part->register_module("shared", shared);
        part->register_module("own", nn::Linear(2, 2));
        register_module(name, wrap(part));
      }
    }
  };
  const auto plans = plan_units(Twice(), {});
  EXPECT_EQ(names(plans), (Names{"left.shared", "left", "right"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"left.shared.weight", "left.shared.bias"}));
}

TEST(Units, IgnoredModulesBelongToNone) {
  Encoder net;
  const auto plans = plan_units(net, {.ignored_modules = {"encoder\\.layers\\.[12]", "head"}});
  EXPECT_EQ(names(plans), (Names{"encoder.layers.0"}));
  // A parameter that an ignored module shares is left alone wherever it is seen.
  nn::Linear a(4, 4), b(4, 4);
  b->register_parameter("tied", a->weight);
  EXPECT_EQ(parameters(plan_units(*nn::ModuleList(a, b), {.auto_wrap = false, .ignored_modules = {"1"}})[0]),
            Names{"0.bias"});
}

TEST(Units, FrozenParametersLieApartUnderTheirUnitsName) {
  Encoder net;
  net.head->weight.set_requires_grad(false);
  for (auto& parameter : net.encoder->layers[1]->parameters()) parameter.set_requires_grad(false);
  const auto plans = plan_units(net, {});
  EXPECT_EQ(names(plans), (Names{"root", "root", "encoder.layers.0", "encoder.layers.1", "encoder.layers.2"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"head.weight"}));
  EXPECT_EQ(parameters(plans[1]), (Names{"head.bias"}));
}

TEST(Units, OneDtypeEach) {
  nn::Sequential net(nn::Linear(2, 2), nn::BatchNorm1d(2));
  net[0]->to(torch::kDouble);
  auto plans = plan_units(*net, {.auto_wrap = false});
  EXPECT_EQ(names(plans), (Names{"root", "root"}));
}

TEST(Units, NormsWithRunningStatisticsKeepTheirDtype) {
  struct Convolutions : nn::Module {
    Convolutions() {
      register_module("conv", nn::Conv2d(1, 2, 3));
      register_module("norm", nn::BatchNorm2d(2));
      register_module("layer_norm", nn::LayerNorm(nn::LayerNormOptions({4})));
      register_buffer("table", torch::zeros({3}));
      register_buffer("count", torch::zeros({3}, at::kLong));
      register_module("ignored", nn::InstanceNorm1d(nn::InstanceNorm1dOptions(2).affine(true)));
    }
  };
  const Convolutions net;
  const auto plans = plan_units(net, {.param_dtype = "bf16"});
  ASSERT_EQ(names(plans), (Names{"root", "root"}));
  EXPECT_EQ(parameters(plans[0]), (Names{"conv.weight", "conv.bias", "layer_norm.weight", "layer_norm.bias"}));
  EXPECT_FALSE(plans[0].keeps_dtype);
  EXPECT_EQ(parameters(plans[1]), (Names{"norm.weight", "norm.bias", "ignored.weight", "ignored.bias"}));
  EXPECT_TRUE(plans[1].keeps_dtype);
  EXPECT_EQ(plan_units(net, {}).size(), 1u);
  const auto buffers = buffers_to_convert(net, {.buffer_dtype = "bf16", .ignored_modules = {"ignored"}});
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_EQ(buffers[0].numel(), 3);
  EXPECT_TRUE(buffers_to_convert(net, {.param_dtype = "bf16"}).empty());
}

}  // namespace
}  // namespace muster::parallel
