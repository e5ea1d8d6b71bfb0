#include "optim/rule.h"

#include <algorithm>
#include <limits>
#include <typeinfo>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/elementwise.h"
#include "muster/optim/flat_parameters.h"
#include "optim/rmsprop.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;

/// Indices of RMSprop's states after square_avg.
constexpr size_t kMomentumBuffer = 1, kGradAvg = 2;

template <class State>
at::Tensor& moment(lib::OptimizerParamState& state, size_t k) {
  auto& own = static_cast<State&>(state);
  return k == 0 ? own.exp_avg() : k == 1 ? own.exp_avg_sq() : own.max_exp_avg_sq();
}

template <class Options, class Kernel>
void run_adam(const lib::OptimizerOptions& options, const UpdateCall& call, Kernel kernel) {
  const auto& own = static_cast<const Options&>(options);
  kernel(call.values, call.gradients, call.states[0], call.states[1], call.states[2], call.steps, own.lr(),
         std::get<0>(own.betas()), std::get<1>(own.betas()), own.weight_decay(), own.eps(), own.amsgrad(), false,
         std::nullopt, call.found_inf);
}

template <class T>
void run_rmsprop_entry(const RmspropNumbers& numbers, const std::array<at::Tensor, 5>& tensors) {
  constexpr int64_t kGrain = 1 << 15;
  std::array<T*, 5> data;
  for (size_t i = 0; i < data.size(); ++i) data[i] = tensors[i].defined() ? tensors[i].mutable_data_ptr<T>() : nullptr;
  at::parallel_for(0, tensors[0].numel(), kGrain, [&](int64_t begin, int64_t end) {
    const auto from = [begin](T* start) { return start ? start + begin : nullptr; };
    update_rmsprop<T>(numbers, from(data[0]), from(data[1]), from(data[2]), from(data[3]), from(data[4]), end - begin);
  });
}

/// The operations of update_rmsprop() by LibTorch's operators, where that loop does not apply.
void update_rmsprop_by_operators(const RmspropNumbers& numbers, const std::array<at::Tensor, 5>& tensors) {
  const auto& [value, gradient, square_avg, momentum_buffer, grad_avg] = tensors;
  const auto g = numbers.weight_decay != 0 ? gradient.add(value, numbers.weight_decay) : gradient;
  square_avg.mul_(numbers.alpha).addcmul_(g, g, 1 - numbers.alpha);
  if (grad_avg.defined()) grad_avg.mul_(numbers.alpha).add_(g, 1 - numbers.alpha);
  const auto scale =
      (grad_avg.defined() ? square_avg.addcmul(grad_avg, grad_avg, -1) : square_avg.clone()).sqrt_().add_(numbers.eps);
  if (momentum_buffer.defined()) value.add_(momentum_buffer.mul_(numbers.momentum).addcdiv_(g, scale), -numbers.lr);
  else value.addcdiv_(g, scale, -numbers.lr);
}

/// Runs update_rmsprop_by_operators(), then restores what has changed if the flag forbids the update.
void run_rmsprop_by_operators(const RmspropNumbers& numbers, const std::array<at::Tensor, 5>& tensors,
                              const std::optional<at::Tensor>& found_inf) {
  if (!found_inf) return update_rmsprop_by_operators(numbers, tensors);
  constexpr size_t kGradient = 1;
  std::array<at::Tensor, 5> before;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (i != kGradient && tensors[i].defined()) before[i] = tensors[i].clone();
  update_rmsprop_by_operators(numbers, tensors);
  const auto made = found_inf->eq(0);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (before[i].defined()) tensors[i].copy_(at::where(made, tensors[i], before[i]));
}

void run_rmsprop(const lib::RMSpropOptions& options, const UpdateCall& call) {
  const RmspropNumbers numbers{.alpha = options.alpha(),
                               .eps = options.eps(),
                               .lr = options.lr(),
                               .momentum = options.momentum(),
                               .weight_decay = options.weight_decay()};
  for (size_t i = 0; i < call.values.size(); ++i) {
    std::array<at::Tensor, 5> tensors{call.values[i], call.gradients[i]};
    for (size_t k = 0; k < 3; ++k)
      if (!call.states[k].empty()) tensors[2 + k] = call.states[k][i];
    const bool on_cpu = tensors[0].device().is_cpu();
    if (on_cpu && tensors[0].scalar_type() == at::kFloat) run_rmsprop_entry<float>(numbers, tensors);
    else if (on_cpu && tensors[0].scalar_type() == at::kDouble) run_rmsprop_entry<double>(numbers, tensors);
    else run_rmsprop_by_operators(numbers, tensors, call.found_inf);
  }
}

void run_sgd(const lib::SGDOptions& options, const UpdateCall& call) {
  at::_fused_sgd_(call.values, call.gradients, call.states[0], options.weight_decay(), options.momentum(), options.lr(),
                  options.dampening(), options.nesterov(), /*maximize=*/false, call.first, std::nullopt,
                  call.found_inf);
}

/// Updates float16 and bfloat16 on a CPU block by block in float32, rounded once: LibTorch 2.13's SGD kernel skips
/// whole vectors of them, and our own loops do not take them. Blocks begin at multiples of kFlatPadding, so that bits
/// do not depend on the number of threads.
template <class Update>
void run_in_float(const UpdateCall& call, Update update) {
  constexpr int64_t kBlock = kFlatPadding << 8;
  for (size_t i = 0; i < call.values.size(); ++i) {
    const auto count = call.values[i].numel();
    at::parallel_for(0, (count + kBlock - 1) / kBlock, 1, [&](int64_t first, int64_t last) {
      const at::AutoDispatchBelowADInplaceOrView below;  // the guard of this worker thread
      for (int64_t begin = first * kBlock; begin < std::min(last * kBlock, count); begin += kBlock) {
        const auto block = [&](const std::vector<at::Tensor>& tensors) {
          return tensors[i].narrow(0, begin, std::min(kBlock, count - begin));
        };
        UpdateCall part;
        part.first = call.first;
        part.found_inf = call.found_inf;
        part.values = {block(call.values).to(at::kFloat)};
        part.gradients = {block(call.gradients).to(at::kFloat)};
        for (size_t k = 0; k < kMaxStates; ++k)
          if (!call.states[k].empty()) part.states[k] = {block(call.states[k]).to(at::kFloat)};
        update(part);
        block(call.values).copy_(part.values[0]);
        for (size_t k = 0; k < kMaxStates; ++k)
          if (!call.states[k].empty()) block(call.states[k]).copy_(part.states[k][0]);
      }
    });
  }
}

void run_elementwise(ElementwiseOptimizer& optimizer, const lib::OptimizerOptions& options, UpdateCall& call) {
  const auto count = optimizer.state_names().size();
  for (size_t i = 0; i < call.values.size(); ++i) {
    ElementwiseUpdate update{call.values[i], call.gradients[i], {}, call.step + 1};
    for (size_t k = 0; k < count; ++k) update.states.push_back(call.states[k][i]);
    optimizer.update(static_cast<const ElementwiseOptions&>(options), update);
  }
}

void set_step(const UpdateCall& call) {
  const auto& scalar = call.steps.front();
  const auto step = static_cast<float>(call.step + 1);
  if (scalar.device().is_cpu()) *scalar.mutable_data_ptr<float>() = step;
  else scalar.fill_(step);
}

}  // namespace

UpdateRule update_rule_of(const lib::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(lib::AdamW)) return UpdateRule::adamw;
  if (type == typeid(lib::Adam)) return UpdateRule::adam;
  if (type == typeid(lib::SGD)) return UpdateRule::sgd;
  if (type == typeid(lib::Adagrad)) return UpdateRule::adagrad;
  if (type == typeid(lib::RMSprop)) return UpdateRule::rmsprop;
  if (dynamic_cast<const ElementwiseOptimizer*>(&optimizer)) return UpdateRule::elementwise;
  return UpdateRule::unfused;
}

std::string class_name(const lib::Optimizer& optimizer) {
  auto name = c10::demangle(typeid(optimizer).name());
  const auto scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

StateSet states_of(UpdateRule rule, const lib::Optimizer& optimizer, const lib::OptimizerOptions& options) {
  constexpr unsigned kOne = 1, kTwo = 3, kThree = 7;
  switch (rule) {
    case UpdateRule::adamw: return static_cast<const lib::AdamWOptions&>(options).amsgrad() ? kThree : kTwo;
    case UpdateRule::adam: return static_cast<const lib::AdamOptions&>(options).amsgrad() ? kThree : kTwo;
    case UpdateRule::sgd: return static_cast<const lib::SGDOptions&>(options).momentum() != 0 ? kOne : 0;
    case UpdateRule::adagrad: return kOne;
    case UpdateRule::rmsprop: {
      const auto& own = static_cast<const lib::RMSpropOptions&>(options);
      StateSet states(kOne);
      states[kMomentumBuffer] = own.momentum() > 0;
      states[kGradAvg] = own.centered();
      return states;
    }
    case UpdateRule::elementwise:
      return (1U << static_cast<const ElementwiseOptimizer&>(optimizer).state_names().size()) - 1;
    case UpdateRule::unfused: break;
  }
  return {};
}

std::unique_ptr<lib::OptimizerParamState> make_state(UpdateRule rule, const lib::Optimizer& optimizer) {
  switch (rule) {
    case UpdateRule::adamw: return std::make_unique<lib::AdamWParamState>();
    case UpdateRule::adam: return std::make_unique<lib::AdamParamState>();
    case UpdateRule::sgd: return std::make_unique<lib::SGDParamState>();
    case UpdateRule::adagrad: return std::make_unique<lib::AdagradParamState>();
    case UpdateRule::rmsprop: return std::make_unique<lib::RMSpropParamState>();
    case UpdateRule::elementwise:
      return std::make_unique<ElementwiseState>(static_cast<const ElementwiseOptimizer&>(optimizer).state_names());
    case UpdateRule::unfused: break;
  }
  return nullptr;
}

at::Tensor& state_tensor(UpdateRule rule, lib::OptimizerParamState& state, size_t k) {
  switch (rule) {
    case UpdateRule::adamw: return moment<lib::AdamWParamState>(state, k);
    case UpdateRule::adam: return moment<lib::AdamParamState>(state, k);
    case UpdateRule::sgd: return static_cast<lib::SGDParamState&>(state).momentum_buffer();
    case UpdateRule::elementwise: return static_cast<ElementwiseState&>(state).tensors[k].second;
    case UpdateRule::rmsprop: {
      auto& own = static_cast<lib::RMSpropParamState&>(state);
      return k == kMomentumBuffer ? own.momentum_buffer() : k == kGradAvg ? own.grad_avg() : own.square_avg();
    }
    case UpdateRule::adagrad:
    case UpdateRule::unfused: break;
  }
  return static_cast<lib::AdagradParamState&>(state).sum();
}

int64_t* state_step(UpdateRule rule, lib::OptimizerParamState& state) {
  if (rule == UpdateRule::adamw) return &static_cast<lib::AdamWParamState&>(state).step();
  if (rule == UpdateRule::adam) return &static_cast<lib::AdamParamState&>(state).step();
  if (rule == UpdateRule::adagrad) return &static_cast<lib::AdagradParamState&>(state).step();
  if (rule == UpdateRule::rmsprop) return &static_cast<lib::RMSpropParamState&>(state).step();
  if (rule == UpdateRule::elementwise) return &static_cast<ElementwiseState&>(state).step;
  return nullptr;
}

double initial_value(UpdateRule rule, const lib::OptimizerOptions& options) {
  return rule == UpdateRule::adagrad ? static_cast<const lib::AdagradOptions&>(options).initial_accumulator_value()
                                     : 0.0;
}

void run_update(UpdateRule rule, lib::Optimizer& optimizer, const lib::OptimizerOptions& options, UpdateCall& call) {
  const auto run_widened = [&](auto&& update) {
    const auto& sample = call.values.front();
    if (sample.is_cpu() && at::isReducedFloatingType(sample.scalar_type())) run_in_float(call, update);
    else update(call);
  };
  switch (rule) {
    case UpdateRule::adamw:
      set_step(call);
      return run_adam<lib::AdamWOptions>(options, call, [](const auto&... a) { at::_fused_adamw_(a...); });
    case UpdateRule::adam:
      set_step(call);
      return run_adam<lib::AdamOptions>(options, call, [](const auto&... a) { at::_fused_adam_(a...); });
    case UpdateRule::adagrad: {
      set_step(call);
      const auto& own = static_cast<const lib::AdagradOptions&>(options);
      return at::_fused_adagrad_(call.values, call.gradients, call.states[0], call.steps, own.lr(), own.lr_decay(),
                                 own.weight_decay(), own.eps(), /*maximize=*/false, std::nullopt, call.found_inf);
    }
    case UpdateRule::sgd:
      return run_widened([&](const auto& part) { run_sgd(static_cast<const lib::SGDOptions&>(options), part); });
    case UpdateRule::rmsprop:
      return run_widened(
          [&](const auto& part) { run_rmsprop(static_cast<const lib::RMSpropOptions&>(options), part); });
    case UpdateRule::elementwise: return run_elementwise(static_cast<ElementwiseOptimizer&>(optimizer), options, call);
    case UpdateRule::unfused: break;
  }
}

std::string why_full(const lib::Optimizer& optimizer) {
  if (dynamic_cast<const lib::LBFGS*>(&optimizer)) return "takes dot products of full gradients";
  return "has a step() of its own, which may look at more than one element at a time: derive it from "
         "muster::ElementwiseOptimizer if it does not";
}

namespace {

constexpr int64_t kCount = 2 * kFlatPadding, kSteps = 2;

double epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return std::numeric_limits<double>::epsilon();
    case at::kFloat: return std::numeric_limits<float>::epsilon();
    case at::kHalf: return static_cast<double>(std::numeric_limits<c10::Half>::epsilon());
    default: return static_cast<double>(std::numeric_limits<c10::BFloat16>::epsilon());
  }
}

/// Values between 0.5 and 1.5 that every dtype represents exactly.
at::Tensor exact_values(bool rising) {
  const auto rise = at::arange(kCount, at::kDouble).remainder(128);
  return (rising ? rise + 64 : 191 - rise) / 128;
}

std::vector<std::unique_ptr<lib::Optimizer>> checked_optimizers() {
  const auto parameters = [] { return std::vector<at::Tensor>{exact_values(true)}; };
  std::vector<std::unique_ptr<lib::Optimizer>> all;
  all.push_back(std::make_unique<lib::SGD>(parameters(), lib::SGDOptions(0.1).weight_decay(0.01)));
  all.push_back(std::make_unique<lib::SGD>(parameters(), lib::SGDOptions(0.1).momentum(0.9).nesterov(true)));
  all.push_back(std::make_unique<lib::Adam>(parameters(), lib::AdamOptions(0.1).weight_decay(0.01)));
  all.push_back(std::make_unique<lib::Adam>(parameters(), lib::AdamOptions(0.1).amsgrad(true)));
  all.push_back(std::make_unique<lib::AdamW>(parameters(), lib::AdamWOptions(0.1)));
  all.push_back(std::make_unique<lib::AdamW>(parameters(), lib::AdamWOptions(0.1).amsgrad(true)));
  all.push_back(std::make_unique<lib::Adagrad>(parameters(), lib::AdagradOptions(0.1).lr_decay(0.01)));
  all.push_back(std::make_unique<lib::RMSprop>(parameters(), lib::RMSpropOptions(0.01).momentum(0.8).centered(true)));
  return all;
}

at::Tensor stepped(lib::Optimizer& optimizer, at::ScalarType dtype, const UpdateFunction& update) {
  const auto rule = update_rule_of(optimizer);
  const auto& options = optimizer.param_groups()[0].options();
  UpdateCall call;
  call.first = rule == UpdateRule::sgd;
  call.values = {exact_values(true).to(dtype)};
  call.gradients = {exact_values(false).to(dtype)};
  const auto states = states_of(rule, optimizer, options);
  for (size_t k = 0; k < kMaxStates; ++k)
    if (states[k]) call.states[k] = {at::full({kCount}, initial_value(rule, options), dtype)};
  call.steps = {at::zeros({}, at::kFloat)};
  for (; call.step < kSteps; ++call.step, call.first = false) update(rule, optimizer, options, call);
  return call.values[0].to(at::kDouble);
}

}  // namespace

double step_tolerance(at::ScalarType dtype, int64_t steps, double largest_value) {
  return static_cast<double>(steps) * epsilon(dtype) * largest_value;
}

std::vector<WrongStep> find_wrong_steps(const UpdateFunction& update) {
  const at::NoGradGuard no_grad;
  std::vector<WrongStep> wrong;
  for (const auto& optimizer : checked_optimizers()) {
    const auto& right = optimizer->param_groups()[0].params()[0];
    right.mutable_grad() = exact_values(false);
    for (int64_t i = 0; i < kSteps; ++i) optimizer->step();
    for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto values = stepped(*optimizer, dtype, update);
      const auto errors = (values - right).abs();
      const auto worst = errors.nan_to_num(std::numeric_limits<double>::max()).argmax();
      // Not `error > tolerance`, which is false for NaN.
      if (errors[worst].item<double>() <= step_tolerance(dtype, kSteps, exact_values(true).max().item<double>()))
        continue;
      wrong.push_back({update_rule_of(*optimizer), dtype,
                       formatted("{} in {}: {} instead of {}", class_name(*optimizer), c10::toString(dtype),
                                 values[worst].item<double>(), right[worst].item<double>())});
    }
  }
  return wrong;
}

void require_right_step(const std::vector<WrongStep>& wrong, UpdateRule rule, at::ScalarType dtype) {
  for (const auto& one : wrong)
    if (one.rule == rule && one.dtype == dtype)
      throw ConfigError("MU580", formatted("LibTorch {} makes wrong steps on this machine ({} after {} steps): train "
                                           "with another optimizer or precision, or build against another LibTorch",
                                           TORCH_VERSION, one.what, kSteps));
}

void require_right_step(UpdateRule rule, at::ScalarType dtype) {
  static const auto wrong = find_wrong_steps();
  require_right_step(wrong, rule, dtype);
}

}  // namespace muster::optim
