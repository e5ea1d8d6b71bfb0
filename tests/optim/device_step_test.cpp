#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/sim/sim.h"
#include "muster/testing/compare.h"
#include "optim/fused.h"
#include "optim/models.h"
#include "optim/rule_cases.h"

namespace muster::optim {
namespace {

namespace lib = torch::optim;
using testing::every_rule;
using testing::Groups;
using testing::Maker;

/// An optimizer of two parameters on the device.
struct OnDevice {
  std::vector<at::Tensor> parameters;
  std::unique_ptr<lib::Optimizer> inner;
  FusedStep optimizer;

  explicit OnDevice(const Maker& make) : parameters(made()), inner(make({parameters})), optimizer(*inner) {}

  static std::vector<at::Tensor> made() {
    std::vector<at::Tensor> all;
    for (const int64_t count : {70, 128})
      all.push_back(at::arange(count, at::kFloat).cos().to(sim::device(0)).requires_grad_());
    return all;
  }
  void set_gradients(int step) {
    for (auto& parameter : parameters)
      parameter.mutable_grad() = (at::arange(parameter.numel(), at::kFloat) * 0.3 + step).sin().to(sim::device(0));
  }
};

at::Tensor flag(bool set) {
  return at::full({1}, set ? 1.F : 0.F, at::TensorOptions(at::kFloat).device(sim::device(0)));
}

class DeviceStep : public ::testing::Test {
 protected:
  DeviceStep() {
    sim::install();
    sim::set_seed(5);
    at::set_num_threads(1);
  }
};

/// Steps that a flag leaves out are as those that nobody made.
TEST_F(DeviceStep, IsLeftOutByAFlag) {
  for (const auto& [name, make] : every_rule()) {
    SCOPED_TRACE(name);
    OnDevice flagged(make), plain(make);
    int by_flag = 0;
    for (int step = 0; step < 8; ++step) {
      const bool skip = step == 0 || step == 3 || step == 4;
      flagged.set_gradients(step);
      plain.set_gradients(step);
      if (!skip) plain.optimizer.step();
      if (flagged.optimizer.takes_found_inf()) {
        const auto found = flag(skip);
        sim::reset_stats();
        flagged.optimizer.step_unless(found);
        EXPECT_EQ(sim::stats().all_host_waits(), 0);
        if (skip) flagged.optimizer.undo_step_count();
        ++by_flag;
      } else if (!skip) {
        flagged.optimizer.step();
      }
    }
    // The first steps of momentum are for the host to decide, until one is made, and updates of a program's own.
    const bool momentum = name == "momentum" || name == "nesterov";
    EXPECT_EQ(by_flag, name == "lion" ? 0 : momentum ? 6 : 8);
    for (size_t i = 0; i < plain.parameters.size(); ++i)
      EXPECT_EQ(
          muster::testing::difference_in_bits(flagged.parameters[i].detach().cpu(), plain.parameters[i].detach().cpu()),
          "");
  }
}

}  // namespace
}  // namespace muster::optim
