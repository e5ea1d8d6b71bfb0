#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

namespace muster::tied {
namespace {

/// Two layers with one weight, which LibTorch's parameters() lists twice.
struct TiedImpl : torch::nn::Module {
  TiedImpl() : head(register_parameter("head", words->weight)), bias(register_parameter("bias", torch::zeros({24}))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::nn::functional::linear(torch::tanh(words(x)), head, bias); }
  torch::nn::Linear words{register_module("words", torch::nn::Linear(torch::nn::LinearOptions(24, 24).bias(false)))};
  torch::Tensor head, bias;
};
TORCH_MODULE(Tied);

struct Course {
  std::vector<double> norms;
  torch::Tensor weight;
};

Tied make() {
  torch::manual_seed(1);
  return {};
}

Course train(const Strategy& strategy, Precision precision, bool repeated) {
  Accelerator accelerator({.grad_scaler = {.init_scale = 1024}, .mixed_precision = precision, .strategy = strategy});
  auto net = make();
  auto parameters = net->parameters();
  EXPECT_EQ(parameters.size(), 3u);
  if (!repeated) parameters.pop_back();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(parameters, 1e-2));
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), 2u);
  Course course;
  for (int step = 0; step < 4; ++step) {
    const auto x =
        torch::cos(torch::arange(72, torch::kFloat) * (step + 2) + 5 * accelerator.process_index()).view({3, 24});
    accelerator.backward(model(x).to(torch::kFloat).square().mean());
    course.norms.push_back(accelerator.clip_grad_norm_(parameters, 0.05));
    optimizer.step();
    EXPECT_FALSE(optimizer.step_was_skipped());
    optimizer.zero_grad();
  }
  course.weight = model.prepared()->managed->full_state(false)[0].second.clone();
  return course;
}

TEST(TiedParameters, AreSteppedClippedAndUnscaledOnceUnderEveryStrategy) {
  testing::as_ranks(2, [] {
    for (const Precision& precision : {Precision("no"), Precision("fp16")}) {
      const auto wanted = train("ddp", precision, /*repeated=*/false);
      EXPECT_FALSE(torch::equal(wanted.weight, make()->words->weight));
      for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
        SCOPED_TRACE(std::string(strategy) + ", " + std::string(precision.name()));
        const auto found = train(strategy, precision, /*repeated=*/true);
        EXPECT_EQ(found.norms, wanted.norms);
        EXPECT_EQ(testing::difference_in_bits(found.weight, wanted.weight), "");
      }
    }
  });
}

TEST(TiedParameters, AreSavedOnceAndSaidOnce) {
  Accelerator accelerator;
  auto net = make(), plain = make();
  ::testing::internal::CaptureStderr();
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 1e-2));
  auto again = accelerator.prepare(torch::optim::Adam(std::vector<torch::Tensor>{net->bias}, 1e-2));
  const auto said = ::testing::internal::GetCapturedStderr();
  const std::string text = "1 tensor(s) again";
  EXPECT_EQ(said.find(text), said.rfind(text)) << said;
  EXPECT_NE(said.find(text), std::string::npos) << said;
  torch::optim::Adam alone({plain->words->weight, plain->bias}, 1e-2);
  const auto x = torch::cos(torch::arange(72, torch::kFloat)).view({3, 24});
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(x).square().mean());
    plain->forward(x).square().mean().backward();
    optimizer.step();
    alone.step();
    optimizer.zero_grad();
    alone.zero_grad();
  }
  EXPECT_EQ(testing::difference(net->words->weight.detach(), plain->words->weight.detach(), 1e-5, 1e-6), "");
  EXPECT_EQ(static_cast<const torch::optim::AdamParamState&>(
                *optimizer.inner().state().at(net->words->weight.unsafeGetTensorImpl()))
                .step(),
            3);
}

TEST(TiedParameters, OfNoModelCountOnce) {
  Accelerator accelerator;
  auto weight = torch::ones({4}, torch::requires_grad());
  (weight * 3).sum().backward();
  EXPECT_NEAR(accelerator.clip_grad_norm_(std::vector<torch::Tensor>{weight, weight}, 3.0), 6.0, 1e-6);
  EXPECT_NEAR(weight.grad().norm().item<double>(), 3.0, 1e-5);
}

}  // namespace
}  // namespace muster::tied
