#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "muster/optim/elementwise.h"

// Every rule that runs fused, with options of each kind, and one of a user's own.

namespace muster::optim::testing {

namespace lib = torch::optim;

using Groups = std::vector<lib::OptimizerParamGroup>;
using Maker = std::function<std::unique_ptr<lib::Optimizer>(Groups)>;

struct RuleCase {
  std::string name;
  Maker make;
};

/// A custom optimizer: Lion with decoupled weight decay.
struct Lion : ElementwiseOptimizer {
  Lion(Groups groups, double lr)
      : ElementwiseOptimizer(std::move(groups), {{"lr", lr}, {"beta", 0.9}, {"weight_decay", 0.02}}, {"exp_avg"}) {}
  void update(const ElementwiseOptions& options, const ElementwiseUpdate& u) override {
    u.value.mul_(1 - options.at("lr") * options.at("weight_decay"));
    u.value.sub_((u.states[0] * 0.9 + u.gradient * 0.1).sign_(), options.at("lr"));
    u.states[0].mul_(options.at("beta")).add_(u.gradient, 1 - options.at("beta"));
  }
};

inline std::vector<RuleCase> every_rule() {
  return {
      {"sgd", [](Groups g) { return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).weight_decay(0.02)); }},
      {"momentum",
       [](Groups g) {
         return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.02));
       }},
      {"nesterov",
       [](Groups g) { return std::make_unique<lib::SGD>(g, lib::SGDOptions(0.1).momentum(0.9).nesterov(true)); }},
      {"adam", [](Groups g) { return std::make_unique<lib::Adam>(g, lib::AdamOptions(0.1).weight_decay(0.03)); }},
      {"adam_amsgrad", [](Groups g) { return std::make_unique<lib::Adam>(g, lib::AdamOptions(0.1).amsgrad(true)); }},
      {"adamw",
       [](Groups g) {
         return std::make_unique<lib::AdamW>(g, lib::AdamWOptions(0.1).betas({0.8, 0.95}));
       }},
      {"adamw_amsgrad",
       [](Groups g) {
         return std::make_unique<lib::AdamW>(g, lib::AdamWOptions(0.1).weight_decay(0.1).amsgrad(true).eps(1e-6));
       }},
      {"adagrad",
       [](Groups g) {
         return std::make_unique<lib::Adagrad>(
             g, lib::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.02).initial_accumulator_value(0.5));
       }},
      {"rmsprop", [](Groups g) { return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01)); }},
      {"rmsprop_momentum",
       [](Groups g) {
         return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).momentum(0.8).weight_decay(0.02));
       }},
      {"rmsprop_centered",
       [](Groups g) { return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).centered(true).eps(1e-3)); }},
      {"rmsprop_both",
       [](Groups g) {
         return std::make_unique<lib::RMSprop>(g, lib::RMSpropOptions(0.01).centered(true).momentum(0.8).eps(1e-3));
       }},
      {"lion", [](Groups g) { return std::make_unique<Lion>(g, 0.01); }},
  };
}

}  // namespace muster::optim::testing
