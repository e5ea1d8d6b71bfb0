#include <set>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/wrap.h"
#include "muster/testing/thrown.h"
#include "parallel/sharded/units.h"

namespace muster::parallel {
namespace {

namespace nn = torch::nn;

std::set<std::string> boundary_names(const nn::Module& module, const ShardedOptions& options) {
  std::set<std::string> all;
  for (const auto& [pointer, name] : unit_boundaries(module, options)) all.insert(name);
  return all;
}

using NameSet = std::set<std::string>;

/// 72 elements in each block, 6 at the end.
struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("up", nn::Linear(nn::LinearOptions(4, 8).bias(false)));
    register_module("norm", nn::LayerNorm(nn::LayerNormOptions({4})));
    register_module("down", nn::Linear(nn::LinearOptions(8, 4).bias(false)));
  }
};

struct BlocksNet : nn::Module {
  BlocksNet() {
    nn::ModuleList list(std::make_shared<BlockImpl>(), std::make_shared<BlockImpl>());
    register_module("blocks", list);
    register_module("head", nn::Linear(2, 2));
  }
};

TEST(UnitBoundaries, ByType) {
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_types = {typeid(BlockImpl)}}), (NameSet{"blocks.0", "blocks.1"}));
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_types = {typeid(nn::LinearImpl), typeid(nn::LayerNormImpl)}}),
            (NameSet{"blocks.0.up", "blocks.0.norm", "blocks.0.down", "blocks.1.up", "blocks.1.norm", "blocks.1.down",
                     "head"}));
}

TEST(UnitBoundaries, ByClassName) {
  for (const char* name : {"Block", "BlockImpl"})
    EXPECT_EQ(boundary_names(BlocksNet(), {.unit_classes = {name}}), (NameSet{"blocks.0", "blocks.1"})) << name;
  EXPECT_EQ(muster::testing::thrown_id([] { unit_boundaries(BlocksNet(), {.unit_classes = {"GPTBlock"}}); }), "MU148");
  EXPECT_EQ(muster::testing::thrown_id([] { unit_boundaries(BlocksNet(), {.unit_types = {typeid(nn::Conv2dImpl)}}); }),
            "MU148");
}

TEST(UnitBoundaries, BySizeFromInsideOut) {
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_min_elements = 73}),
            NameSet{});  // a list is not a unit, the root is one anyway
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_min_elements = 72}), (NameSet{"blocks.0", "blocks.1"}));
  // The norm's 8 elements are all that is left in a block.
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_min_elements = 32}),
            (NameSet{"blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"}));
  EXPECT_EQ(
      boundary_names(BlocksNet(), {.unit_min_elements = 8}),
      (NameSet{"blocks.0.up", "blocks.0.norm", "blocks.0.down", "blocks.1.up", "blocks.1.norm", "blocks.1.down"}));
}

TEST(UnitBoundaries, BySizeLeavesAttentionWhole) {
  nn::Sequential net;
  net->push_back("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
  EXPECT_EQ(boundary_names(*net, {.unit_min_elements = 64}), NameSet{"attention"});
}

TEST(UnitBoundaries, BySizeCountsSharedParametersOnce) {
  nn::Linear a(4, 4), b(4, 4);
  b->register_parameter("tied", a->weight);
  nn::Sequential net(a, b);
  EXPECT_EQ(boundary_names(*net, {.unit_min_elements = 21}), NameSet{});
  EXPECT_EQ(boundary_names(*net, {.unit_min_elements = 20}), (NameSet{"0", "1"}));
}

TEST(UnitBoundaries, ByPredicate) {
  const auto ends_in_zero = [](const std::string& name, const nn::Module& module) {
    return name.ends_with("0") && !module.children().empty();
  };
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_predicate = ends_in_zero}), NameSet{"blocks.0"});
}

TEST(UnitBoundaries, ByNameOrExpression) {
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_names = {"head", "blocks\\.\\d"}}),
            (NameSet{"head", "blocks.0", "blocks.1"}));
}

TEST(UnitBoundaries, UnknownNamesListTheKnownOnes) {
  try {
    unit_boundaries(BlocksNet(), {.unit_names = {"blocks.7"}});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.id(), "MU148");
    EXPECT_NE(std::string(error.what()).find("blocks.1.down"), std::string::npos) << error.what();
  }
  EXPECT_EQ(muster::testing::thrown_id([] { unit_boundaries(BlocksNet(), {.unit_names = {"blocks.("}}); }), "MU148");
  EXPECT_EQ(muster::testing::thrown_id([] { ignored_modules(BlocksNet(), {.ignored_modules = {"tail"}}); }), "MU148");
}

TEST(UnitBoundaries, WaysAddUpAndStopTheAutomaticOne) {
  BlocksNet net;
  net.register_module("marked", wrap(nn::Linear(2, 2)));
  EXPECT_EQ(boundary_names(net, {}), NameSet{"marked"});
  EXPECT_EQ(boundary_names(net, {.unit_names = {"blocks.0"}, .unit_types = {typeid(nn::LayerNormImpl)}}),
            (NameSet{"marked", "blocks.0", "blocks.0.norm", "blocks.1.norm"}));
  EXPECT_EQ(boundary_names(BlocksNet(), {}), (NameSet{"blocks.0", "blocks.1"}));
  EXPECT_EQ(boundary_names(BlocksNet(), {.unit_min_elements = 1 << 20}), NameSet{});
}

}  // namespace
}  // namespace muster::parallel
