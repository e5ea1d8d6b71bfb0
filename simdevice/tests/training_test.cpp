// Ten steps have the CPU's bits under every seed.
#include <vector>

#include <ATen/autocast_mode.h>

#include "simulated.h"

namespace muster::sim {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct MlpImpl : nn::Module {
  nn::Sequential layers{nn::Linear(12, 32), nn::ReLU(), nn::LayerNorm(nn::LayerNormOptions({32})),
                        nn::Linear(32, 32), nn::GELU(), nn::Dropout(0.5),
                        nn::Linear(32, 5)};
  MlpImpl() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  static at::Tensor input() { return torch::randn({8, 12}); }
  static at::Tensor target() { return torch::randint(5, {8}); }
};
TORCH_MODULE(Mlp);

struct ConvImpl : nn::Module {
  nn::Conv2d one{nn::Conv2dOptions(3, 8, 3).padding(1)};
  nn::BatchNorm2d norm{8};
  nn::Linear out{8 * 4 * 4, 5};
  ConvImpl() {
    register_module("one", one);
    register_module("norm", norm);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    return out(F::max_pool2d(F::relu(norm(one(x))), F::MaxPool2dFuncOptions(2)).flatten(1));
  }
  static at::Tensor input() { return torch::randn({4, 3, 8, 8}); }
  static at::Tensor target() { return torch::randint(5, {4}); }
};
TORCH_MODULE(Conv);

nn::TransformerEncoderLayerOptions encoder_layer() {
  return nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(24).dropout(0.5);
}

struct TransformerImpl : nn::Module {
  nn::Embedding words{17, 16};
  nn::TransformerEncoder layers{nn::TransformerEncoderOptions(encoder_layer(), 2)};
  nn::Linear out{16, 17};
  TransformerImpl() {
    register_module("words", words);
    register_module("layers", layers);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    return out(layers(words(x).transpose(0, 1)).transpose(0, 1).flatten(0, 1));
  }
  static at::Tensor input() { return torch::randint(17, {3, 6}); }
  static at::Tensor target() { return torch::randint(17, {18}); }
};
TORCH_MODULE(Transformer);

enum class Optimizer { adamw, sgd, fused };

/// Adam by LibTorch's fused kernel, with a loss scale that it divides by.
class FusedAdam {
 public:
  FusedAdam(std::vector<at::Tensor> parameters, at::Device device)
      : parameters_(std::move(parameters)), scale_(at::full({}, 4.0F, at::TensorOptions(device))),
        found_inf_(at::zeros({}, at::TensorOptions(device))) {
    for (auto& p : parameters_) {
      m_.push_back(at::zeros_like(p));
      v_.push_back(at::zeros_like(p));
      steps_.push_back(at::zeros({}, p.options().requires_grad(false)));
    }
  }
  void step(const at::Tensor& loss) {
    (loss * scale_).backward();
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (auto& p : parameters_) gradients.push_back(p.mutable_grad());
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf_, scale_.reciprocal());
    for (auto& step : steps_) step += 1;
    at::_fused_adam_(parameters_, gradients, m_, v_, {}, steps_, 1e-2, 0.9, 0.999, 0.0, 1e-8, false, false,
                     std::nullopt, found_inf_);
  }

 private:
  std::vector<at::Tensor> parameters_, m_, v_, steps_;
  at::Tensor scale_, found_inf_;
};

template <class Holder>
std::vector<at::Tensor> train(at::Device device, Optimizer optimizer) {
  torch::manual_seed(7);
  Holder model;
  std::vector<at::Tensor> inputs, targets;
  for (int i = 0; i < 10; ++i) {
    inputs.push_back(device.is_cpu() ? model->input() : model->input().pin_memory());
    targets.push_back(device.is_cpu() ? model->target() : model->target().pin_memory());
  }
  model->to(device);
  torch::optim::AdamW adamw(model->parameters(), 1e-2);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1e-2).momentum(0.9));
  FusedAdam fused(model->parameters(), device);
  torch::manual_seed(11);
  at::Tensor loss;
  for (int i = 0; i < 10; ++i) {
    loss = F::cross_entropy(model->forward(inputs[i].to(device, /*non_blocking=*/true)),
                            targets[i].to(device, /*non_blocking=*/true));
    model->zero_grad();
    if (optimizer == Optimizer::fused) {
      fused.step(loss);
      continue;
    }
    loss.backward();
    nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    if (optimizer == Optimizer::adamw) adamw.step();
    else sgd.step();
  }
  std::vector<at::Tensor> all{loss.detach().cpu()};
  for (const auto& p : model->parameters()) all.push_back(p.detach().cpu());
  for (const auto& b : model->buffers()) all.push_back(b.detach().cpu());
  return all;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, uint64_t seed) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(difference_in_bits(actual[i], expected[i]), "") << "tensor " << i << ", seed " << seed;
}

template <class Holder>
void expect_the_cpus_bits() {
  for (const auto optimizer : {Optimizer::adamw, Optimizer::sgd, Optimizer::fused}) {
    SCOPED_TRACE(static_cast<int>(optimizer));
    const auto expected = train<Holder>(at::kCPU, optimizer);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      set_seed(seed);
      expect_equal(train<Holder>(device(static_cast<int>(seed) % 4), optimizer), expected, seed);
    }
  }
}

class SimTraining : public Simulated {};

TEST_F(SimTraining, OfAPerceptron) { expect_the_cpus_bits<Mlp>(); }
TEST_F(SimTraining, OfAConvolution) { expect_the_cpus_bits<Conv>(); }
TEST_F(SimTraining, OfATransformer) { expect_the_cpus_bits<Transformer>(); }

/// Autocast's lists are CUDA's, which the CPU has not; schedules must not change its bits.
TEST_F(SimTraining, UnderAutocast) {
  at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
  at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
  std::vector<at::Tensor> first;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    set_seed(seed);
    const auto all = train<Transformer>(device(0), Optimizer::adamw);
    if (seed == 0) first = all;
    expect_equal(all, first, seed);
    at::autocast::clear_cache();
  }
  const auto x = torch::ones({2, 3}, device(0));
  EXPECT_EQ(at::linear(x, x).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::linear(x, x).exp().scalar_type(), at::kFloat);
  EXPECT_EQ(at::linear(x, x).sum().scalar_type(), at::kFloat);
  EXPECT_EQ(at::addcmul(x, x.to(at::kBFloat16), x).scalar_type(), at::kFloat);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
}

}  // namespace
}  // namespace muster::sim
