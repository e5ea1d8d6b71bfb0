#include "precision/device_grad_scaler.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::precision {
namespace {

constexpr GradScalerOptions kShortInterval{.growth_interval = 2, .init_scale = 1024};

GradScalerState read(const DeviceGradScaler& scaler) {
  const auto state = scaler.state();
  return {.growth_tracker = static_cast<int64_t>(state[0].item<double>()), .scale = state[1].item<double>()};
}

at::Tensor number(double value) { return torch::full({}, value, torch::kDouble); }

/// Its operators are those of any device, so they can be compared on the CPU.
TEST(DeviceGradScaler, DoesAsTheOneOfTheHost) {
  GradScaler host(kShortInterval);
  DeviceGradScaler device(kShortInterval, host.state_dict(), at::kCPU);
  for (int step = 0; step < 60; ++step) {
    SCOPED_TRACE(step);
    const bool bad = step % 7 == 3, smaller = step % 5 == 4;
    auto gradient = torch::sin(torch::arange(40) * 0.7 + step) * 1e3;
    if (bad) gradient[step % 40] = std::numeric_limits<double>::infinity();
    auto same = gradient.clone();
    const double scale = smaller ? host.scale() / 4 : host.scale();
    const auto on_device = smaller ? number(scale) : device.scale();
    host.unscale({gradient}, scale);
    device.unscale({same}, on_device);
    EXPECT_TRUE(torch::equal(gradient, same) || bad);
    EXPECT_EQ(device.found_inf().item<float>() > 0, bad);
    host.update(host.found_inf(), scale);
    device.update(on_device);
    EXPECT_EQ(read(device), host.state_dict());
    EXPECT_EQ(device.scale().item<double>(), host.scale());
    EXPECT_EQ(device.found_inf().item<float>(), 0);
  }
}

TEST(DeviceGradScaler, TakesEveryDtype) {
  DeviceGradScaler scaler(kShortInterval, {.scale = 4}, at::kCPU);
  std::vector<torch::Tensor> gradients;
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16})
    gradients.push_back(torch::full({3}, 8.0, dtype));
  gradients.emplace_back();
  gradients.push_back(torch::empty({0}));
  scaler.unscale(gradients, scaler.scale());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(gradients[i].sum().item<double>(), 6) << i;
  EXPECT_EQ(scaler.found_inf().item<float>(), 0);
}

}  // namespace
}  // namespace muster::precision
