#pragma once

#include <optional>
#include <type_traits>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "muster/optim/elementwise.h"

/// The fields of LibTorch's optimizers, under Python's names and in Python's order, and those of ElementwiseOptimizer.
namespace muster::optim {

/// The initial value of a field that only Python has.
struct PythonOnly {
  std::optional<bool> value;
};

template <class F>
void each_option(torch::optim::SGDOptions& o, F&& f) {
  f("lr", o.lr());
  f("momentum", o.momentum());
  f("dampening", o.dampening());
  f("weight_decay", o.weight_decay());
  f("nesterov", o.nesterov());
  f("maximize", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
}

template <class O, class F>
void each_adam_option(O& o, F&& f, bool decoupled) {
  f("lr", o.lr());
  f("betas", o.betas());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("amsgrad", o.amsgrad());
  f("maximize", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("capturable", PythonOnly{false});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
  f("decoupled_weight_decay", PythonOnly{decoupled});
}
template <class F>
void each_option(torch::optim::AdamOptions& o, F&& f) {
  each_adam_option(o, f, false);
}
template <class F>
void each_option(torch::optim::AdamWOptions& o, F&& f) {
  each_adam_option(o, f, true);
}

template <class F>
void each_option(torch::optim::AdagradOptions& o, F&& f) {
  f("lr", o.lr());
  f("lr_decay", o.lr_decay());
  f("eps", o.eps());
  f("weight_decay", o.weight_decay());
  f("initial_accumulator_value", o.initial_accumulator_value());
  f("foreach", PythonOnly{});
  f("maximize", PythonOnly{false});
  f("differentiable", PythonOnly{false});
  f("fused", PythonOnly{});
}

template <class F>
void each_option(torch::optim::RMSpropOptions& o, F&& f) {
  f("lr", o.lr());
  f("momentum", o.momentum());
  f("alpha", o.alpha());
  f("eps", o.eps());
  f("centered", o.centered());
  f("weight_decay", o.weight_decay());
  f("capturable", PythonOnly{false});
  f("foreach", PythonOnly{});
  f("maximize", PythonOnly{false});
  f("differentiable", PythonOnly{false});
}

template <class F>
void each_option(torch::optim::LBFGSOptions& o, F&& f) {
  f("lr", o.lr());
  f("max_iter", o.max_iter());
  f("max_eval", o.max_eval());
  f("tolerance_grad", o.tolerance_grad());
  f("tolerance_change", o.tolerance_change());
  f("history_size", o.history_size());
  f("line_search_fn", o.line_search_fn());
}

template <class F>
void each_option(ElementwiseOptions& o, F&& f) {
  for (auto& [name, value] : o.values()) f(name.c_str(), value);
}

template <class F>
void each_state(torch::optim::SGDParamState& s, F&& f) {
  f("momentum_buffer", s.momentum_buffer());
}

template <class S, class F>
void each_adam_state(S& s, F&& f) {
  f("step", s.step());
  f("exp_avg", s.exp_avg());
  f("exp_avg_sq", s.exp_avg_sq());
  f("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class F>
void each_state(torch::optim::AdamParamState& s, F&& f) {
  each_adam_state(s, f);
}
template <class F>
void each_state(torch::optim::AdamWParamState& s, F&& f) {
  each_adam_state(s, f);
}

template <class F>
void each_state(torch::optim::AdagradParamState& s, F&& f) {
  f("step", s.step());
  f("sum", s.sum());
}

template <class F>
void each_state(torch::optim::RMSpropParamState& s, F&& f) {
  f("step", s.step());
  f("square_avg", s.square_avg());
  f("momentum_buffer", s.momentum_buffer());
  f("grad_avg", s.grad_avg());
}

template <class F>
void each_state(torch::optim::LBFGSParamState& s, F&& f) {
  f("func_evals", s.func_evals());
  f("n_iter", s.n_iter());
  f("d", s.d());
  f("t", s.t());
  f("old_dirs", s.old_dirs());
  f("old_stps", s.old_stps());
  f("ro", s.ro());
  f("H_diag", s.H_diag());
  f("prev_flat_grad", s.prev_flat_grad());
  f("prev_loss", s.prev_loss());
  f("al", s.al());
}

template <class F>
void each_state(ElementwiseState& s, F&& f) {
  f("step", s.step);
  for (auto& [name, tensor] : s.tensors) f(name.c_str(), tensor);
}

/// Calls f(options as their known class, std::type_identity of the state class). Returns false for any other class.
template <class F>
bool with_known_class(torch::optim::OptimizerOptions& options, F&& f) {
  namespace lib = torch::optim;
  const auto attempt = [&]<class O, class S>(std::type_identity<O>, std::type_identity<S> state) {
    auto* known = dynamic_cast<O*>(&options);
    if (known) f(*known, state);
    return known != nullptr;
  };
  return attempt(std::type_identity<lib::SGDOptions>(), std::type_identity<lib::SGDParamState>()) ||
         attempt(std::type_identity<lib::AdamOptions>(), std::type_identity<lib::AdamParamState>()) ||
         attempt(std::type_identity<lib::AdamWOptions>(), std::type_identity<lib::AdamWParamState>()) ||
         attempt(std::type_identity<lib::AdagradOptions>(), std::type_identity<lib::AdagradParamState>()) ||
         attempt(std::type_identity<lib::RMSpropOptions>(), std::type_identity<lib::RMSpropParamState>()) ||
         attempt(std::type_identity<lib::LBFGSOptions>(), std::type_identity<lib::LBFGSParamState>()) ||
         attempt(std::type_identity<ElementwiseOptions>(), std::type_identity<ElementwiseState>());
}

}  // namespace muster::optim
