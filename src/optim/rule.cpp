#include "optim/rule.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

namespace muster::optim {
namespace {

namespace lib = torch::optim;

template <class State>
at::Tensor& moment(lib::OptimizerParamState& state, size_t k) {
  auto& own = static_cast<State&>(state);
  return k == 0 ? own.exp_avg() : k == 1 ? own.exp_avg_sq() : own.max_exp_avg_sq();
}

template <class Options, class Kernel>
void run_adam(const lib::OptimizerOptions& options, const UpdateCall& call, Kernel kernel) {
  const auto& own = static_cast<const Options&>(options);
  kernel(call.values, call.gradients, call.states[0], call.states[1], call.states[2], call.steps, own.lr(),
         std::get<0>(own.betas()), std::get<1>(own.betas()), own.weight_decay(), own.eps(), own.amsgrad(), false);
}

void set_step(const UpdateCall& call) {
  const auto& scalar = call.steps.front();
  const auto step = static_cast<float>(call.step + 1);
  if (scalar.device().is_cpu())
    *scalar.mutable_data_ptr<float>() = step;
  else
    scalar.fill_(step);
}

}  // namespace

Rule rule_of(const lib::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(lib::AdamW)) return Rule::adamw;
  if (type == typeid(lib::Adam)) return Rule::adam;
  if (type == typeid(lib::SGD)) return Rule::sgd;
  if (type == typeid(lib::Adagrad)) return Rule::adagrad;
  return Rule::own;
}

std::string class_name(const lib::Optimizer& optimizer) {
  auto name = c10::demangle(typeid(optimizer).name());
  const auto scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

size_t state_count(Rule rule, const lib::OptimizerOptions& options) {
  switch (rule) {
    case Rule::adamw: return static_cast<const lib::AdamWOptions&>(options).amsgrad() ? 3 : 2;
    case Rule::adam: return static_cast<const lib::AdamOptions&>(options).amsgrad() ? 3 : 2;
    case Rule::sgd: return static_cast<const lib::SGDOptions&>(options).momentum() != 0 ? 1 : 0;
    case Rule::adagrad: return 1;
    case Rule::own: break;
  }
  return 0;
}

std::unique_ptr<lib::OptimizerParamState> make_state(Rule rule) {
  switch (rule) {
    case Rule::adamw: return std::make_unique<lib::AdamWParamState>();
    case Rule::adam: return std::make_unique<lib::AdamParamState>();
    case Rule::sgd: return std::make_unique<lib::SGDParamState>();
    case Rule::adagrad: return std::make_unique<lib::AdagradParamState>();
    case Rule::own: break;
  }
  return nullptr;
}

at::Tensor& state_tensor(Rule rule, lib::OptimizerParamState& state, size_t k) {
  if (rule == Rule::adamw) return moment<lib::AdamWParamState>(state, k);
  if (rule == Rule::adam) return moment<lib::AdamParamState>(state, k);
  if (rule == Rule::sgd) return static_cast<lib::SGDParamState&>(state).momentum_buffer();
  return static_cast<lib::AdagradParamState&>(state).sum();
}

int64_t* state_step(Rule rule, lib::OptimizerParamState& state) {
  if (rule == Rule::adamw) return &static_cast<lib::AdamWParamState&>(state).step();
  if (rule == Rule::adam) return &static_cast<lib::AdamParamState&>(state).step();
  if (rule == Rule::adagrad) return &static_cast<lib::AdagradParamState&>(state).step();
  return nullptr;
}

double initial_value(Rule rule, const lib::OptimizerOptions& options) {
  return rule == Rule::adagrad ? static_cast<const lib::AdagradOptions&>(options).initial_accumulator_value() : 0.0;
}

void run_update(Rule rule, const lib::OptimizerOptions& options, UpdateCall& call) {
  switch (rule) {
    case Rule::adamw:
      set_step(call);
      return run_adam<lib::AdamWOptions>(options, call, [](const auto&... a) { at::_fused_adamw_(a...); });
    case Rule::adam:
      set_step(call);
      return run_adam<lib::AdamOptions>(options, call, [](const auto&... a) { at::_fused_adam_(a...); });
    case Rule::adagrad: {
      set_step(call);
      const auto& own = static_cast<const lib::AdagradOptions&>(options);
      return at::_fused_adagrad_(call.values, call.gradients, call.states[0], call.steps, own.lr(), own.lr_decay(),
                                 own.weight_decay(), own.eps(), /*maximize=*/false);
    }
    case Rule::sgd: {
      const auto& own = static_cast<const lib::SGDOptions&>(options);
      return at::_fused_sgd_(call.values, call.gradients, call.states[0], own.weight_decay(), own.momentum(), own.lr(),
                             own.dampening(), own.nesterov(), /*maximize=*/false, call.first);
    }
    case Rule::own: break;
  }
}

}  // namespace muster::optim
