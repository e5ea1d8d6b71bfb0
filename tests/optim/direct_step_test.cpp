#include <functional>
#include <sstream>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "optim/fused.h"
#include "optim/models.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::copies;
using testing::odd_parameters;
using testing::set_gradients;

using ParameterMaker = std::function<std::unique_ptr<lib::Optimizer>(std::vector<at::Tensor>)>;

struct DirectStepCase {
  std::string name;
  ParameterMaker make;
};

std::vector<DirectStepCase> every_optimizer() {
  return {
      {"sgd", [](auto p) { return std::make_unique<lib::SGD>(p, lib::SGDOptions(0.1)); }},
      {"momentum", [](auto p) { return std::make_unique<lib::SGD>(p, lib::SGDOptions(0.1).momentum(0.9)); }},
      {"adam", [](auto p) { return std::make_unique<lib::Adam>(p, lib::AdamOptions(0.1)); }},
      {"adamw", [](auto p) { return std::make_unique<lib::AdamW>(p, lib::AdamWOptions(0.1)); }},
      {"adagrad", [](auto p) { return std::make_unique<lib::Adagrad>(p, lib::AdagradOptions(0.1)); }},
      {"rmsprop", [](auto p) { return std::make_unique<lib::RMSprop>(p, lib::RMSpropOptions(0.1)); }},
  };
}

void expect_refused(const std::function<void()>& call, const std::string& what) {
  try {
    call();
    ADD_FAILURE() << what << ": a step of the user's own optimizer went unseen";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU133") << what;
  }
}

TEST(DirectStep, IsRefusedAtTheNextCall) {
  for (const auto& [name, make] : every_optimizer())
    for (const int steps_before : {0, 1, 2}) {
      const auto parameters = odd_parameters(at::kFloat);
      const auto inner = make(parameters);
      FusedStep optimizer(*inner);
      for (int i = 0; i < steps_before; ++i) {
        set_gradients(parameters, 10 + i);
        optimizer.note_backward();
        optimizer.step();
      }
      set_gradients(parameters, 20);
      optimizer.note_backward();
      inner->step();
      const auto what = name + " after " + std::to_string(steps_before);
      if (steps_before == 1) expect_refused([&] { optimizer.zero_grad(); }, what);
      else if (steps_before == 2) expect_refused([&] { optimizer.refuse_direct_step(); }, what);
      else expect_refused([&] { optimizer.step(); }, what);
      EXPECT_NO_THROW(optimizer.step()) << what << ": reported once";
    }
}

TEST(DirectStep, EditsAfterOurStepAreFine) {
  for (const auto& [name, make] : every_optimizer()) {
    const auto parameters = odd_parameters(at::kFloat);
    const auto inner = make(parameters);
    FusedStep optimizer(*inner);
    for (int i = 0; i < 3; ++i) {
      optimizer.refuse_direct_step();
      set_gradients(parameters, 30 + i);
      optimizer.note_backward();
      optimizer.step();
      {
        torch::NoGradGuard no_grad;
        for (auto parameter : parameters) parameter.clamp_(-0.5, 0.5);
      }
      optimizer.zero_grad();
    }
  }
}

TEST(DirectStep, LoadedStateIsNoStep) {
  const auto parameters = odd_parameters(at::kDouble), others = copies(parameters);
  lib::AdamW inner(parameters, lib::AdamWOptions(0.1)), other(others, lib::AdamWOptions(0.1));
  FusedStep optimizer(inner);
  for (int i = 0; i < 3; ++i) {
    set_gradients(parameters, 40 + i);
    set_gradients(others, 40 + i);
    optimizer.note_backward();
    optimizer.step();
    other.step();
  }
  std::stringstream file;
  torch::save(other, file);
  torch::load(inner, file);
  for (int i = 0; i < 2; ++i) {
    set_gradients(parameters, 50 + i);
    set_gradients(others, 50 + i);
    optimizer.note_backward();
    ASSERT_NO_THROW(optimizer.step());
    other.step();
  }
  EXPECT_LT(testing::largest_difference(parameters, others), 1e-12);
}

}  // namespace
}  // namespace muster::optim
