#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/curve.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

using namespace curve;

/// In the last step rank 0 has four samples, rank 1 has one, and rank 2 has none.
TEST(UnevenWindows, AShortLastWindowMayEndEarlierOnSomeRanks) {
  testing::as_ranks(3, [] {
    const Accelerator keeps_the_meeting_place;
    const auto data = points(4 * 3 * 5 + 5);
    for (const auto* strategy : {"ddp", "zero2"})
      for (const int k : {2, 4, 7}) {
        SCOPED_TRACE(::testing::Message() << strategy << ", micro-batches " << k);
        const AcceleratorOptions options{.even_batches = false, .gradient_accumulation_steps = k, .strategy = strategy};
        expect_equal(micro_batches(data, {options}), big_batches(data, 4 * 3 * k, 2));
      }
  });
}

TEST(UnevenWindows, AWindowOfSomeRanksOnlyIsAnError) {  // MU345
  testing::as_ranks(2, [] {
    const Accelerator keeps_the_meeting_place;
    const auto data = points(4 * 2 * 5 + 3);  // a sixth batch on rank 0
    const auto expect_error = [&](const GradientAccumulationOptions& accumulation) {
      AcceleratorOptions options{.even_batches = false, .gradient_accumulation = accumulation};
      const auto id = testing::thrown_id([&] { micro_batches(data, {options, 4, 1}); });
      EXPECT_EQ(id, keeps_the_meeting_place.is_main_process() ? "MU345" : "no error") << accumulation.num_steps;
    };
    expect_error({});
    expect_error({.num_steps = 5});
    expect_error({.num_steps = 4, .sync_each_batch = true});
    expect_error({.num_steps = 4, .sync_with_dataloader = false});
  });
}

TEST(UnevenWindows, SchedulesCountTheBatchThatOnlyOthersHave) {
  testing::as_ranks(2, [] {
    Accelerator accelerator(
        {.even_batches = false, .gradient_accumulation = {.adjust_scheduler = true, .num_steps = 4}});
    auto net = seeded_curve();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    const auto data = points(4 * 2 * 5 + 3);
    auto [model, optimizer, scheduler, batches] =
        accelerator.prepare(net, sgd, torch::optim::StepLR(sgd, 1, 0.5), DataLoader(data, {.batch_size = 4}));
    for (auto& [x, y] : batches) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
      scheduler.step();
    }
    EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), std::pow(0.5, 5));  // LibTorch ignores the first of six
  });
}

}  // namespace
}  // namespace muster
