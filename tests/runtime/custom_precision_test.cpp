#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/comm/communicator.h"
#include "muster/fabric.h"
#include "muster/precision/plugin.h"
#include "muster/strategy/options.h"
#include "muster/strategy/strategy.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "options/program_options.h"
#include "ranks.h"
#include "runtime/prepared_model.h"

namespace muster::runtime::custom_precision {
namespace {

using muster::testing::as_ranks;
using muster::testing::thrown;
using muster::testing::thrown_id;
using Tensors = std::vector<torch::Tensor>;

/// What "bf16-true" does, by hand.
struct ByHand : PrecisionPlugin {
  std::string_view name() const override { return "by_hand"; }
  at::ScalarType parameter_dtype() const override { return at::kBFloat16; }
  void convert_module(torch::nn::Module& module, const std::vector<std::string>&) override {
    for (auto& parameter : module.parameters()) parameter.set_data(parameter.to(at::kBFloat16));
  }
  void convert_input(torch::Tensor& tensor) override { tensor = tensor.to(at::kBFloat16); }
  void convert_output(torch::Tensor& tensor) override { tensor = tensor.to(at::kFloat); }
};

/// Nothing is overridden that need not be.
struct Plain : PrecisionPlugin {
  explicit Plain(at::ScalarType parameters) : dtype(parameters) {}
  std::string_view name() const override { return "plain"; }
  at::ScalarType parameter_dtype() const override { return dtype; }
  std::optional<at::ScalarType> autocast_dtype() const override { return autocast; }
  std::optional<at::ScalarType> reduce_dtype() const override { return reduce; }
  bool scales_losses() const override { return scales; }
  at::ScalarType dtype;
  std::optional<at::ScalarType> autocast = {}, reduce = {};
  bool scales = false;
};

/// Counts calls, and throws in enter_forward() if it is told to.
struct Counting : Plain {
  Counting() : Plain(at::kFloat) {}
  void convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32) override {
    ++modules;
    Plain::convert_module(module, fp32);
  }
  void convert_input(torch::Tensor& tensor) override {
    ++inputs;
    EXPECT_GT(depth, 0);
    Plain::convert_input(tensor);
  }
  void convert_output(torch::Tensor&) override {
    ++outputs;
    EXPECT_EQ(depth, 0);
  }
  void enter_forward() override {
    if (throws) throw std::runtime_error("no forward today");
    ++entered;
    ++depth;
  }
  void leave_forward() noexcept override { --depth; }
  int modules = 0, inputs = 0, outputs = 0, entered = 0, depth = 0;
  bool throws = false;
};

/// Parameters and losses of three steps, in each of which the model is used twice.
Tensors trained(const Precision& precision, const Strategy& strategy = "auto") {
  Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = precision, .strategy = strategy});
  accelerator.set_seed(5, /*per_rank=*/true);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 4));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
  Tensors result;
  for (int step = 0; step < 3; ++step) {
    auto loss = model(model(torch::randn({3, 4}))).square().mean();
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    optimizer.zero_grad();
    result.push_back(loss.detach());
  }
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

void expect_bits(const Tensors& actual, const Tensors& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(muster::testing::difference_in_bits(actual[i], expected[i]), "") << what << " " << i;
}

TEST(CustomPrecision, ByHandIsBf16TrueToTheBit) {
  expect_bits(trained(std::make_shared<ByHand>()), trained("bf16-true"), "one rank");
  EXPECT_NE(muster::testing::difference_in_bits(trained("bf16-true")[0], trained("no")[0]), "");
}

TEST(CustomPrecision, IsTheBuiltInOneToTheBitUnderEveryStrategy) {
  as_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
      expect_bits(trained(std::make_shared<ByHand>(), strategy), trained("bf16-true", strategy), strategy);
      auto mixed = std::make_shared<Plain>(at::kFloat);
      mixed->autocast = at::kHalf;
      mixed->scales = true;
      expect_bits(trained(mixed, strategy), trained("16-mixed", strategy), strategy);
    }
  });
}

TEST(CustomPrecision, WhatIsNotOverriddenCastsToTheDtypeOfTheParameters) {
  expect_bits(trained(std::make_shared<Plain>(at::kDouble)), trained("64-true"), "double");
  auto mixed = std::make_shared<Plain>(at::kFloat);
  mixed->autocast = at::kBFloat16;
  expect_bits(trained(mixed), trained("bf16-mixed"), "mixed");
}

TEST(CustomPrecision, IsCalledOncePerForwardAndTensor) {
  auto counting = std::make_shared<Counting>();
  Fabric fabric({.precision = counting});
  fabric.launch();
  torch::nn::Linear net(2, 2);
  auto model = fabric.setup(net);
  EXPECT_EQ(counting->modules, 1);
  fabric.backward(model(model(torch::ones({1, 2}))).sum());  // the model twice
  EXPECT_EQ(counting->inputs, 2);
  EXPECT_EQ(counting->outputs, 2);
  EXPECT_EQ(counting->entered, 2);
  EXPECT_EQ(counting->depth, 0);
  {
    const auto scope = fabric.autocast();
    EXPECT_EQ(counting->depth, 1);
    const auto off = fabric.autocast({.enabled = false});
    EXPECT_EQ(counting->depth, 1) << "autocast that is switched off enters nothing";
  }
  EXPECT_EQ(counting->depth, 0);
  EXPECT_NE(fabric.plan().find("precision: plain (given by the program; parameters Float, computed in Float)"),
            std::string::npos)
      << fabric.plan();
}

TEST(CustomPrecision, AnExceptionOfEnterForwardLeavesNothing) {
  auto counting = std::make_shared<Counting>();
  counting->autocast = at::kBFloat16;
  Accelerator accelerator({.mixed_precision = counting});
  torch::nn::Linear net(2, 2);
  auto model = accelerator.prepare(net);
  counting->throws = true;
  EXPECT_THROW(model(torch::ones({1, 2})), std::runtime_error);
  EXPECT_THROW(static_cast<void>(accelerator.autocast()), std::runtime_error);
  EXPECT_EQ(counting->depth, 0) << "leave_forward() belongs to an enter_forward() that returned";
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(counting->inputs, 0);
  counting->throws = false;
  EXPECT_THROW(model(torch::ones({1, 3})), std::exception);  // the module's own exception
  EXPECT_EQ(counting->depth, 0);
  EXPECT_EQ(model(torch::ones({1, 2})).scalar_type(), at::kBFloat16);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(CustomPrecision, ModulesInFloat32AreKeptAndChecked) {
  Accelerator accelerator({.fp32_modules = {"1"}, .mixed_precision = std::make_shared<Plain>(at::kBFloat16)});
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  auto model = accelerator.prepare(net);
  EXPECT_EQ(net->parameters()[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->parameters()[2].scalar_type(), at::kFloat);
  EXPECT_EQ(thrown_id([&] { static_cast<void>(accelerator.prepare(torch::nn::Linear(2, 2))); }), "MU148");
}

TEST(CustomPrecision, WithoutAnObjectOrANameOfItsOwnIsMU310) {
  struct Named : Plain {
    explicit Named(const char* given) : Plain(at::kFloat), given_name(given) {}
    std::string_view name() const override { return given_name; }
    const char* given_name;
  };
  EXPECT_EQ(thrown_id([] { static_cast<void>(Precision(std::shared_ptr<Plain>())); }), "MU310");
  for (const char* name : {"", "no", "bf16-mixed"})
    EXPECT_EQ(thrown_id([&] { static_cast<void>(Precision(std::make_shared<Named>(name))); }), "MU310") << name;
}

struct SwappingImpl : torch::nn::Module {
  void swap() {
    parameters_.clear();
    weight = register_parameter("weight", torch::ones({2}));
  }
  torch::Tensor weight = register_parameter("weight", torch::zeros({2}));
};
TORCH_MODULE(Swapping);

TEST(CustomPrecision, ThatReplacesAParameterIsMU310) {
  struct Replacing : Plain {
    Replacing() : Plain(at::kBFloat16) {}
    void convert_module(torch::nn::Module& module, const std::vector<std::string>&) override {
      module.as<SwappingImpl>()->swap();
    }
  };
  Accelerator accelerator({.mixed_precision = std::make_shared<Replacing>()});
  const auto text = thrown([&] { static_cast<void>(accelerator.prepare(Swapping())); });
  EXPECT_TRUE(text.starts_with("MU310")) << text;
  EXPECT_NE(text.find("'plain' has replaced parameter weight"), std::string::npos) << text;
}

TEST(CustomPrecision, ContradictsALaunchersRequest) {
  const RuntimeOptions options{.precision = std::make_shared<Plain>(at::kBFloat16)};
  for (const char* name : {"32-true", "bf16-true"}) {
    const auto text = thrown([&] { resolved(options, {{"MUSTER_PRECISION", name}}); });
    EXPECT_TRUE(text.starts_with("MU171")) << text;
    EXPECT_NE(text.find("plain"), std::string::npos) << text;
  }
  EXPECT_EQ(resolved(options, {{"ACCELERATE_MIXED_PRECISION", "no"}}).precision, options.precision);
}

TEST(CustomPrecision, SaysInWhichDtypeGradientsAreSummed) {
  as_ranks(2, [] {
    const auto summing = [](at::ScalarType dtype) {
      auto policy = std::make_shared<Plain>(at::kFloat);
      policy->reduce = dtype;
      return policy;
    };
    const auto bf16 = summing(at::kBFloat16);
    expect_bits(trained(bf16, "ddp"), trained("no", DDP{.comm_hook = "bf16"}), "ddp");
    expect_bits(trained(bf16, "fsdp"), trained("no", FSDP{.reduce_dtype = at::kBFloat16}), "fsdp");
    expect_bits(trained(bf16, FSDP{.reduce_dtype = "f32"}), trained("no", "fsdp"), "the strategy's option counts");
    EXPECT_NE(muster::testing::difference_in_bits(trained(bf16, "fsdp").back(), trained("no", "fsdp").back()), "");
    expect_bits(trained(summing(at::kFloat), "ddp"), trained("no", "ddp"), "the dtype of the parameters");
    EXPECT_EQ(thrown_id([&] { trained(summing(at::kDouble), "ddp"); }), "MU311");
    struct Mine : TrainingStrategy {
      std::string_view name() const override { return "mine"; }
      std::shared_ptr<ManagedModel> setup_module(torch::nn::Module& module,
                                                 const comm::Communicator& group) const override {
        return make_strategy("ddp", group.size(), group.size())->setup_module(module, group);
      }
    };
    EXPECT_EQ(thrown_id([&] { trained(bf16, std::make_shared<Mine>()); }), "MU311");
  });
}

TEST(CustomPrecision, ThatDiffersFromRankToRankIsMU312) {
  as_ranks(2, [] {
    const bool main = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "0";
    auto policy = std::make_shared<Plain>(at::kFloat);
    policy->scales = main;
    const auto text = thrown([&] { Accelerator accelerator({.mixed_precision = policy}); });
    EXPECT_TRUE(text.starts_with("MU312")) << text;
    EXPECT_NE(text.find("losses scaled"), std::string::npos) << text;
  });
}

TEST(CustomPrecision, AgainstABuiltInOneOfAnotherRankIsNoticed) {
  as_ranks(2, [] {
    const bool main = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "0";
    const Precision precision = main ? Precision(std::make_shared<Plain>(at::kFloat)) : Precision("no");
    const auto text = thrown([&] {
      Accelerator accelerator({.mixed_precision = precision});
      static_cast<void>(accelerator.prepare(torch::nn::Linear(2, 2)));
    });
    EXPECT_TRUE(text.starts_with("MU050")) << text;
    EXPECT_NE(text.find("precision policies"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace muster::runtime::custom_precision
