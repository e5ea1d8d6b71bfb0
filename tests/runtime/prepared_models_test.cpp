#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

// What prepare() makes of a module that has gradients already, shares a layer, or cannot be sent.
namespace muster::prepared_models {
namespace {

struct ForkImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return b(a(x).relu()); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 8))}, b{register_module("b", torch::nn::Linear(8, 3))};
};
TORCH_MODULE(Fork);

torch::Tensor part_of(int rank, double start) { return torch::full({2, 4}, start + rank); }

/// The weights after one step by two backwards, of which the first may come before prepare.
std::vector<torch::Tensor> stepped_by_two(const Strategy& strategy, bool before) {
  Accelerator accelerator({.strategy = strategy});
  const auto rank = accelerator.process_index();
  torch::manual_seed(1);
  Fork net;
  if (before) net(part_of(rank, 1)).square().mean().backward();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  if (!before) {
    const auto window = accelerator.no_sync(model);
    accelerator.backward(model(part_of(rank, 1)).square().mean());
  }
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
  accelerator.backward(model(part_of(rank, 3)).square().mean());
  optimizer.step();
  std::vector<torch::Tensor> all;
  for (const auto& [name, value] : model.prepared()->managed->full_state(false)) all.push_back(value.clone());
  return all;
}

TEST(PreparedModels, KeepsGradientsFromBeforeAsThoseOfNoSync) {
  const auto check = [](const char* strategy) {
    const auto found = stepped_by_two(strategy, true), wanted = stepped_by_two(strategy, false);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_EQ(testing::difference_in_bits(found[i], wanted[i]), "") << strategy << ", " << i;
  };
  check("auto");
  testing::as_ranks(2, [&] {
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) check(strategy);
  });
}

TEST(PreparedModels, ConvertsGradientsFromBeforeWithTheirParameters) {
  Fabric fabric({.precision = "bf16-true"});
  Fork net;
  net(torch::ones({2, 4})).sum().backward();
  const auto wanted = (net->a->weight.detach().to(torch::kBFloat16).to(torch::kFloat) -
                       net->a->weight.grad().to(torch::kBFloat16).to(torch::kFloat))
                          .to(torch::kBFloat16);
  auto [model, optimizer] = fabric.setup(net, torch::optim::SGD(net->parameters(), 1.0));
  optimizer.step();
  EXPECT_TRUE(torch::equal(net->a->weight, wanted));
}

/// Has the first layer of a Fork.
struct SharerImpl : torch::nn::Module {
  explicit SharerImpl(ForkImpl& other) : shared(register_module("shared", other.a)) {}
  torch::Tensor forward(torch::Tensor x) { return head(shared(x)); }
  torch::nn::Linear shared, head{register_module("head", torch::nn::Linear(8, 1))};
};
TORCH_MODULE(Sharer);

void expect_shared_layer_refused(const char* strategy, bool whole) {
  Accelerator accelerator({.strategy = strategy});
  const auto refused = [&](const Sharer& sharer) { return testing::thrown([&] { accelerator.prepare(sharer); }); };
  Fork net;
  const Sharer sharer(*net);
  auto model = accelerator.prepare(net);
  const auto said = refused(sharer);
  EXPECT_EQ(said.rfind("MU581: parameter 'shared.weight' of ", 0), 0u) << strategy << ": " << said;
  EXPECT_NE(said.find("'a.weight' of "), std::string::npos) << said;
  EXPECT_NE(said.find("ForkImpl"), std::string::npos) << said;
  Fork frozen;
  for (auto& parameter : frozen->a->parameters()) parameter.requires_grad_(false);
  auto of_frozen = accelerator.prepare(frozen);
  EXPECT_EQ(refused(Sharer(*frozen)).rfind(whole ? "no error" : "MU581", 0), 0u) << strategy;
}

TEST(PreparedModels, RefusesAParameterOfAnotherPreparedModule) {  // MU581
  expect_shared_layer_refused("auto", true);
  {
    Accelerator accelerator;
    Fork net;
    accelerator.prepare(net);  // its handle is gone after this line
    EXPECT_NO_THROW(accelerator.prepare(Sharer(*net)));
  }
  testing::as_ranks(2, [] {
    expect_shared_layer_refused("ddp", true);
    for (const char* strategy : {"zero1", "fsdp"}) expect_shared_layer_refused(strategy, false);
  });
}

struct SpectrumImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return layer(x) * at::abs(spectrum); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(4, 3))};
  torch::Tensor spectrum{register_parameter("spectrum", torch::ones({3}, torch::kComplexFloat))};
};
TORCH_MODULE(Spectrum);

TEST(PreparedModels, NamesAParameterThatRanksCannotExchange) {  // MU056
  testing::as_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "fsdp"}) {
      Accelerator accelerator({.strategy = strategy});
      const auto said = testing::thrown([&] { accelerator.prepare(Spectrum()); });
      EXPECT_EQ(said.rfind("MU056: parameter 'spectrum' is of complex64", 0), 0u) << strategy << ": " << said;
    }
  });
}

TEST(PreparedModels, GradientsAreClippedByWhoPreparedTheirModel) {  // MU582
  testing::as_ranks(2, [] {
    Accelerator one({.strategy = "fsdp"}), other({.strategy = "fsdp"});
    auto model = one.prepare(Fork());
    one.backward(model(torch::ones({2, 4})).sum());
    EXPECT_EQ(testing::thrown_id([&] { other.clip_grad_norm_(model, 1.0); }), "MU582");
    EXPECT_EQ(testing::thrown_id([&] { other.clip_grad_value_(model, 1.0); }), "MU582");
    EXPECT_GT(one.clip_grad_norm_(model, 1.0), 0.0);
  });
}

}  // namespace
}  // namespace muster::prepared_models
