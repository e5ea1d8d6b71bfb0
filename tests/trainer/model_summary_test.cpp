#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/boring_model.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

/// Two parts, one of them with parts, and a parameter of its own.
struct Nested : torch::nn::Module {
  torch::nn::Sequential body = register_module(
      "body", torch::nn::Sequential(torch::nn::Linear(256, 512), torch::nn::ReLU(), torch::nn::Linear(512, 2)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(2, 2));
  torch::Tensor scale = register_parameter("scale", torch::ones(3));
};

TEST(ModelSummary, PartsAreListedDownToADepth) {
  Nested module;
  module.head->eval();
  const auto summary = summarize(module);
  ASSERT_EQ(summary.rows.size(), 2u);
  EXPECT_EQ(summary.rows[0].name, "body");
  EXPECT_EQ(summary.rows[0].type, "Sequential");
  EXPECT_EQ(summary.rows[0].parameters, 256 * 512 + 512 + 512 * 2 + 2);
  EXPECT_FALSE(summary.rows[1].training);
  EXPECT_EQ(summarize(module, 2).rows.size(), 5u);
  EXPECT_EQ(summarize(module, 2).rows[1].name, "body.0");
  EXPECT_EQ(summarize(module, 2).rows[2].type, "ReLU");
  EXPECT_EQ(summarize(module, -1).rows.size(), 5u);
  EXPECT_TRUE(summarize(module, 0).rows.empty());
}

TEST(ModelSummary, TotalsCountEachParameterOnce) {
  Nested module;
  module.head->weight.set_requires_grad(false);
  const auto summary = summarize(module);
  EXPECT_EQ(summary.frozen, 4);
  EXPECT_EQ(summary.total(), 256 * 512 + 512 + 512 * 2 + 2 + 6 + 3);
  EXPECT_EQ(summary.other_parameters, 3);
  EXPECT_EQ(summary.bytes, 4 * summary.total());
  EXPECT_EQ(summary.modules_in_train, 5);

  struct Tied : torch::nn::Module {
    torch::nn::Linear a = register_module("a", torch::nn::Linear(3, 3)),
                      b = register_module("b", torch::nn::Linear(3, 3));
    Tied() { b->register_parameter("again", a->weight); }
  };
  const Tied tied;
  EXPECT_EQ(summarize(tied).total(), 2 * (9 + 3));
  EXPECT_EQ(summarize(tied).rows.at(1).parameters, 9 + 9 + 3);
}

TEST(ModelSummary, TheTextIsLightnings) {
  Nested module;
  EXPECT_EQ(summarize(module).text(),
            "  | Name         | Type       | Params | Mode \n"
            "----------------------------------------------\n"
            "0 | body         | Sequential | 132 K  | train\n"
            "1 | head         | Linear     | 6      | train\n"
            "  | other params | n/a        | 3      | n/a  \n"
            "----------------------------------------------\n"
            "132 K     Trainable params\n"
            "0         Non-trainable params\n"
            "132 K     Total params\n"
            "0.530     Total estimated model params size (MB)\n"
            "5         Modules in train mode\n"
            "0         Modules in eval mode\n");
}

std::string shown_by(const std::function<void(std::FILE*)>& run) {
  auto* file = std::tmpfile();
  run(file);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

std::string shown_by_fit(int max_depth, Strategy strategy = "auto") {
  return shown_by([&](std::FILE* file) {
    auto options = testing::quiet({.fast_dev_run = 1, .strategy = strategy});
    options.callbacks = {std::make_shared<ModelSummary>(ModelSummaryOptions{.max_depth = max_depth, .stream = file})};
    testing::BoringModel module;
    Trainer(options).fit(module);
  });
}

TEST(ModelSummary, FitShowsIt) {
  EXPECT_NE(shown_by_fit(1).find("0 | layer | Linear | 66"), std::string::npos);
  EXPECT_EQ(shown_by_fit(0), "");
}

TEST(ModelSummary, ShardedParametersCountWhole) {
  testing::as_ranks(2, [] {
    const auto text = shown_by_fit(1, "fsdp");
    const bool is_main = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "0";
    EXPECT_EQ(text.find("66        Total params") != text.npos, is_main) << text;
  });
}

TEST(ModelSummary, TheTrainerAddsOneUnlessItIsOff) {
  const auto count_in = [](const Trainer& trainer) {
    return std::ranges::count_if(trainer.callbacks(), [](const auto& callback) {
      return dynamic_cast<const ModelSummary*>(callback.get()) != nullptr;
    });
  };
  EXPECT_EQ(count_in(Trainer()), 1);
  EXPECT_EQ(count_in(Trainer({.callbacks = {std::make_shared<ModelSummary>()}})), 1);
  EXPECT_EQ(count_in(Trainer({.enable_model_summary = false})), 0);
}

TEST(ModelSummary, ADepthBelowMinusOneIsRefused) {  // MU451
  EXPECT_EQ(testing::thrown_id([] { ModelSummary({.max_depth = -2}); }), "MU451");
  EXPECT_EQ(testing::thrown_id([] { summarize(Nested(), -2); }), "MU451");
}

}  // namespace
}  // namespace muster
