#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/format.h"
#include "muster/testing/thrown.h"
#include "optim/fused.h"
#include "optim/rule.h"
#include "optim/rule_cases.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::Groups;
using testing::RuleCase;

template <class Optimizer, class Options>
RuleCase rule_case(const std::string& name, const Options& options) {
  return {name, [options](Groups groups) { return std::make_unique<Optimizer>(groups, options); }};
}

/// Every rule with a kernel or a loop of ours, with each of its options on and off.
std::vector<RuleCase> every_option() {
  std::vector<RuleCase> all;
  for (const double decay : {0.0, 0.02}) {
    const auto with = formatted(", weight_decay {}", decay);
    const auto sgd = [&](double momentum, double dampening, bool nesterov) {
      all.push_back(rule_case<lib::SGD>(
          formatted("SGD, momentum {}, dampening {}, nesterov {}", momentum, dampening, nesterov) + with,
          lib::SGDOptions(0.1).momentum(momentum).dampening(dampening).nesterov(nesterov).weight_decay(decay)));
    };
    sgd(0, 0, false);
    sgd(0.9, 0, false);
    sgd(0.9, 0.3, false);
    sgd(0.9, 0, true);
    for (const bool on : {false, true}) {
      all.push_back(rule_case<lib::Adam>(formatted("Adam, amsgrad {}", on) + with,
                                         lib::AdamOptions(0.1).amsgrad(on).weight_decay(decay)));
      all.push_back(rule_case<lib::AdamW>(formatted("AdamW, amsgrad {}", on) + with,
                                          lib::AdamWOptions(0.1).amsgrad(on).weight_decay(decay)));
      for (const double other : {0.0, 0.5}) {
        all.push_back(rule_case<lib::Adagrad>(
            formatted("Adagrad, lr_decay {}, initial {}", on ? 0.01 : 0.0, other) + with,
            lib::AdagradOptions(0.1).lr_decay(on ? 0.01 : 0.0).initial_accumulator_value(other).weight_decay(decay)));
        all.push_back(
            rule_case<lib::RMSprop>(formatted("RMSprop, centered {}, momentum {}", on, other) + with,
                                    lib::RMSpropOptions(0.01).centered(on).momentum(other).weight_decay(decay)));
      }
    }
  }
  return all;
}

enum class Layout { contiguous, transposed, with_gaps };

/// The vector in this layout.
at::Tensor laid_out(const at::Tensor& vector, Layout layout) {
  if (layout == Layout::contiguous) return vector;
  if (layout == Layout::transposed) return vector.view({-1, vector.numel() % 3 == 0 ? 3 : 1}).clone().t();
  auto spread = torch::zeros({2 * vector.numel()}, vector.options()).slice(0, 0, std::nullopt, 2);
  return spread.copy_(vector);
}

at::Tensor read_back(const at::Tensor& tensor) {
  return (tensor.dim() == 2 ? tensor.t() : tensor).detach().reshape(-1);
}

/// Between 0.5 and 1.5 of either sign, which are the same in every dtype; a sign stays, so that no sum cancels.
at::Tensor exact_values(int64_t count, int64_t start, int64_t stride) {
  const auto at = torch::arange(count, at::kDouble);
  return ((at * stride + start).remainder(128) + 64) / 128 * (1 - 2 * at.remainder(2));
}

constexpr int64_t kSteps = 2;

/// The parts of the vector as parameters, after some of our steps; the gradients of step s are `gradients[s]`.
at::Tensor stepped(const RuleCase& rule, const std::vector<int64_t>& sizes, Layout layout, at::ScalarType dtype,
                   const at::Tensor& values, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> parameters;
  for (const auto& part : values.to(dtype, /*non_blocking=*/false, /*copy=*/true).split_with_sizes(sizes))
    parameters.push_back(laid_out(part, layout).detach().requires_grad_());
  const auto inner = rule.make({parameters});
  FusedStep optimizer(*inner);
  for (const auto& gradient : gradients) {
    const auto parts = gradient.to(dtype).split_with_sizes(sizes);
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = laid_out(parts[i], layout);
    optimizer.step();
  }
  std::vector<at::Tensor> all;
  for (const auto& parameter : parameters) all.push_back(read_back(parameter));
  return at::cat(all).to(at::kDouble);
}

/// Ours in every dtype and layout, against one step in float64 of LibTorch's own optimizer.
void compare(const RuleCase& rule, const std::vector<int64_t>& sizes, const std::vector<Layout>& layouts) {
  const auto count = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto values = exact_values(count, 0, 37);
  std::vector<at::Tensor> gradients;
  for (int64_t s = 0; s < kSteps; ++s) gradients.push_back(exact_values(count, s * 29, 53));
  auto right = values.clone().requires_grad_();
  const auto peer = rule.make({std::vector<at::Tensor>{right}});
  for (const auto& gradient : gradients) {
    right.mutable_grad() = gradient.clone();
    peer->step();
  }
  for (const auto layout : layouts)
    for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto error = (stepped(rule, sizes, layout, dtype, values, gradients) - right.detach()).abs().max();
      EXPECT_LE(error.item<double>(), step_tolerance(dtype, kSteps, values.abs().max().item<double>()))
          << rule.name << " in " << dtype << ", layout " << static_cast<int>(layout);
    }
}

/// LibTorch's kernels wake all threads for the smallest tensor.
class StepCheck : public ::testing::Test {
 protected:
  StepCheck() { at::set_num_threads(1); }
  ~StepCheck() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_F(StepCheck, EveryStepIsLibTorchsInFloat64) {
  std::vector<int64_t> sizes(200);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.push_back(4099);
  const std::vector<int64_t> some{1, 7, 63, 64, 65, 71, 128, 200, 4099};
  for (const auto& rule : every_option()) {
    compare(rule, sizes, {Layout::contiguous});
    compare(rule, some, {Layout::transposed, Layout::with_gaps});
  }
}

TEST_F(StepCheck, FindsAKernelThatDropsVectors) {  // MU580
  EXPECT_TRUE(find_wrong_steps().empty());
  const auto dropping = [](UpdateRule rule, lib::Optimizer& optimizer, const lib::OptimizerOptions& options,
                           UpdateCall& call) {
    const auto before = call.values[0].clone();
    run_update(rule, optimizer, options, call);
    if (rule == UpdateRule::adam && call.values[0].scalar_type() == at::kHalf)
      call.values[0].narrow(0, 32, 32).copy_(before.narrow(0, 32, 32));
  };
  const auto wrong = find_wrong_steps(dropping);
  ASSERT_FALSE(wrong.empty());
  for (const auto& one : wrong) EXPECT_TRUE(one.rule == UpdateRule::adam && one.dtype == at::kHalf) << one.what;
  const auto said = muster::testing::thrown([&] { require_right_step(wrong, UpdateRule::adam, at::kHalf); });
  EXPECT_EQ(said.rfind("MU580: LibTorch ", 0), 0u) << said;
  EXPECT_NE(said.find("Adam in Half"), std::string::npos) << said;
  require_right_step(wrong, UpdateRule::adam, at::kFloat);
  require_right_step(wrong, UpdateRule::adamw, at::kHalf);
}

}  // namespace
}  // namespace muster::optim
