#include <functional>
#include <tuple>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "on_device/test_device.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

DataLoader<at::Tensor> counting() {
  return DataLoader([](int64_t i) { return torch::full({2}, static_cast<float>(i)); }, 6, {.batch_size = 2});
}

/// In a process of its own, since an accelerator that is installed stays.
void with_an_accelerator(const std::function<void()>& body) {
  testing::as_ranks(1, [&] {
    testing::use_test_device();
    body();
  });
}

at::Device device_of(const DataLoader<at::Tensor>& loader) {
  for (const auto& batch : loader) return batch.device();
  return at::kCPU;
}

TEST(Placement, OfAllObjectsIsAsTheCallSays) {
  with_an_accelerator([] {
    Accelerator accelerator;
    const torch::nn::Linear net(2, 2), other(2, 2);
    const auto there = accelerator.device();
    ASSERT_FALSE(there.is_cpu());
    auto [model, optimizer, batches] =
        accelerator.prepare({.move_to_device = false}, net, torch::optim::SGD(net->parameters(), 0.1), counting());
    EXPECT_EQ(net->weight.device(), at::kCPU);
    EXPECT_EQ(device_of(batches), at::kCPU);
    for (const auto& batch : batches) {
      accelerator.backward(model(batch).square().sum());
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(net->weight.device(), at::kCPU);
    const auto moved = accelerator.prepare(other, counting());
    EXPECT_EQ(other->weight.device(), there);
    EXPECT_EQ(device_of(std::get<1>(moved)), there);
  });
}

TEST(Placement, OfEachObjectIsItsOwn) {
  with_an_accelerator([] {
    Accelerator accelerator;
    const torch::nn::Linear one(2, 2), two(2, 2);
    const auto there = accelerator.device();
    const auto prepared =
        accelerator.prepare({.move_to_device = {true, false, true, false}}, one, two, counting(), counting());
    EXPECT_EQ(one->weight.device(), there);
    EXPECT_EQ(two->weight.device(), at::kCPU);
    EXPECT_EQ(device_of(std::get<2>(prepared)), there);
    EXPECT_EQ(device_of(std::get<3>(prepared)), at::kCPU);
  });
}

TEST(Placement, IsAnOptionOfFabric) {
  with_an_accelerator([] {
    Fabric fabric;
    fabric.launch();
    const torch::nn::Linear one(2, 2), two(2, 2), three(2, 2);
    const PrepareOptions stays{.move_to_device = false};
    fabric.setup(stays, one, torch::optim::SGD(one->parameters(), 0.1));
    fabric.setup_module(two, stays);
    fabric.setup_module(three);
    EXPECT_EQ(one->weight.device(), at::kCPU);
    EXPECT_EQ(two->weight.device(), at::kCPU);
    EXPECT_EQ(three->weight.device(), fabric.device());
    const auto loaders = fabric.setup_dataloaders({.move_to_device = {false, true}}, counting(), counting());
    EXPECT_EQ(device_of(std::get<0>(loaders)), at::kCPU);
    EXPECT_EQ(device_of(std::get<1>(loaders)), fabric.device());
  });
}

TEST(Placement, HasAnAnswerForEachObject) {
  Accelerator accelerator;
  const torch::nn::Linear net(2, 2);
  EXPECT_EQ(testing::thrown_id([&] {
              accelerator.prepare({.move_to_device = {true, false, true}}, net, counting());
            }),
            "MU566");
}

}  // namespace
}  // namespace muster
