// An error for want of a device's memory says who holds it (MU576).
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "base/log.h"
#include "muster/accelerator.h"
#include "muster/parallel/sharded_options.h"
#include "muster/strategy/options.h"
#include "runtime/device_course.h"

namespace muster::out_of_memory {
namespace {

constexpr int64_t kMiB = 1 << 20;

/// A layer of 1 MiB.
torch::nn::Linear layer() { return torch::nn::Linear(torch::nn::LinearOptions(512, 512).bias(false)); }

void on_small_devices(int world, const std::function<void()>& body) {
  testing::as_ranks(
      world,
      [&] {
        sim::install({.bytes_per_device = 16 * kMiB});
        at::set_num_threads(1);
        body();
      },
      std::to_string(world));
}

/// Of the error that it gives, which is still LibTorch's.
template <class Error = c10::OutOfMemoryError>
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  EXPECT_EQ(message.find("MU576"), message.rfind("MU576")) << message;
}

at::Tensor rows(const Accelerator& accelerator, int64_t mib) {
  return torch::ones({mib * kMiB / (512 * 4), 512}, accelerator.device());
}

TEST(OutOfMemory, SaysWhoHoldsTheMemory) {
  on_small_devices(1, [] {
    Accelerator accelerator;
    const auto net = layer();
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    const auto step_on = [&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
      accelerator.backward(model(x).sum());
      optimizer.step();
    };
    {
      const auto x = rows(accelerator, 2);
      accelerator.backward(model(x).sum());
      const auto kept = rows(accelerator, 11);
      expect_parts(
          message_of([&, &o = optimizer] { o.step(); }),
          {"out of memory on sim:0", "MU576: of the ", "1.0 MiB are parameters and buffers, 1.0 MiB gradients"});
    }
    step_on(rows(accelerator, 1));
    const std::string held =
        "1.0 MiB are parameters and buffers, 1.0 MiB gradients, 2.0 MiB optimizer state, 0 B pools of full "
        "parameters and gradients, and up to 1";
    const auto x = rows(accelerator, 8);
    expect_parts(message_of([&, &m = model] { (void)m(x); }),
                 {held, "MiB activations and the program's own", "MiB are reserved"});
    const auto answer = model(rows(accelerator, 1));
    answer.register_hook([&](const at::Tensor&) { (void)rows(accelerator, 9); });
    expect_parts(message_of([&] { accelerator.backward(answer.sum()); }), {held});
    const torch::nn::Linear large(4096, 2048);
    expect_parts(message_of([&] { (void)accelerator.prepare(large); }), {"out of memory on sim:0", held});
    const auto other = message_of<c10::Error>([&, &m = model] { (void)m(torch::ones({3, 5}, accelerator.device())); });
    EXPECT_EQ(other.find("MU576"), std::string::npos) << "no error for want of memory: " << other;
  });
}

TEST(OutOfMemory, CountsWhatBlocksKeepForBackward) {
  on_small_devices(1, [] {
    Accelerator accelerator({.recompute = {.blocks = {"0|1"}}});
    const torch::nn::Sequential net(layer(), layer());
    auto model = accelerator.prepare(net);
    accelerator.backward(model(rows(accelerator, 1)).sum());
    expect_parts(message_of([&] { (void)model(rows(accelerator, 9)); }),
                 {"MiB activations and the program's own", "; for backward, blocks keep 0 1.0 MiB, 1 1.0 MiB"});
  });
}

TEST(OutOfMemory, CountsShardsAndPoolsOfShardedModels) {
  on_small_devices(2, [] {
    Accelerator accelerator(
        {.device_backend = testing::simulated_backend(), .strategy = FSDP{.unit_min_elements = 1000}});
    const torch::nn::Sequential net(layer(), layer());
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.01));
    accelerator.backward(model(rows(accelerator, 1)).sum());
    optimizer.step();
    const auto x = rows(accelerator, 6);
    const auto message = message_of([&, &m = model] { (void)m(x); });
    expect_parts(message, {"1.0 MiB are parameters and buffers, 1.0 MiB gradients, 2.0 MiB optimizer state, "});
    EXPECT_EQ(message.find(", 0 B pools of full parameters and gradients"), std::string::npos) << message;
  });
}

TEST(OutOfMemory, IsForeseenByTheFiguresAtTheStart) {
  on_small_devices(1, [] {
    log::set_level(log::Level::info);
    Accelerator accelerator;
    (void)rows(accelerator, 3);
    ::testing::internal::CaptureStderr();
    auto model = accelerator.prepare(layer());
    const auto text = ::testing::internal::GetCapturedStderr();
    const std::string figures =
        "sim:0 holds 1.0 MiB in tensors now and held 3.0 MiB at most; 4.0 MiB are reserved, and 4.0 MiB were at most";
    EXPECT_NE(text.find("; " + figures), std::string::npos) << text;
    EXPECT_NE(accelerator.plan().find("memory: " + figures), std::string::npos) << accelerator.plan();
  });
}

}  // namespace
}  // namespace muster::out_of_memory
