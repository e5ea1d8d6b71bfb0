#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/sample_split.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

DataLoader<torch::Tensor> counting(int64_t size, DataLoaderOptions options = {.batch_size = 2}) {
  return DataLoader([](int64_t i) { return torch::tensor(i); }, size, options);
}

TEST(LoaderPreparation, TakesOptionsForOneLoader) {
  Accelerator accelerator({.even_batches = false});
  const auto loader = counting(4);
  EXPECT_FALSE(prepare_loader(accelerator, loader).sample_split().even_batches.value());
  EXPECT_TRUE(prepare_loader(accelerator, loader, {.even_batches = true}).sample_split().even_batches.value());
  EXPECT_EQ(prepare_loader(accelerator, loader, {.move_to_device = false}).sample_split().device, at::kCPU);
  EXPECT_EQ(prepare_loader(accelerator, loader).sample_split().device, accelerator.device());
  EXPECT_EQ(
      testing::thrown_id([&] { prepare_loader(accelerator, loader, {.even_batches = true, .filler_batches = true}); }),
      "MU432");
}

TEST(LoaderPreparation, TakesALoaderWithoutItsType) {
  Fabric fabric;
  const auto loader = counting(5);
  const auto prepared = prepare_loader(fabric, *loader.state());
  ASSERT_NE(prepared, loader.state());
  const auto pass = prepared->begin_pass();
  int batches = 0;
  while (pass->next()) ++batches;
  EXPECT_EQ(batches, 3);
  EXPECT_EQ(prepared->epoch(), 1);
  EXPECT_EQ(loader.epoch(), 0);
}

TEST(LoaderPreparation, MakesLoadersThatWindowsFollow) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  const auto prepared = prepare_loader(accelerator, *counting(6).state());
  std::vector<bool> ends;
  const auto pass = prepared->begin_pass();
  while (pass->next()) ends.push_back(accelerator.accumulate().sync_gradients());
  EXPECT_EQ(ends, (std::vector<bool>{false, true, true}));
}

TEST(LoaderPreparation, FillsUpWhereARankHasNoSample) {
  testing::as_ranks(3, [] {
    Accelerator accelerator;
    auto loader = prepare_loader(accelerator, counting(9), {.filler_batches = true});
    std::vector<int64_t> gathered;
    int64_t fillers = 0, batches = 0;
    for (auto& batch : loader) {
      const auto all = accelerator.gather_for_metrics(batch);
      gathered.insert(gathered.end(), all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
      fillers += loader.local_real_samples() == 0;
      ++batches;
    }
    std::vector<int64_t> each(9);
    std::iota(each.begin(), each.end(), 0);
    EXPECT_EQ(gathered, each);
    EXPECT_EQ(batches, 2);
    EXPECT_EQ(fillers, accelerator.is_last_process() ? 1 : 0);
  });
}

}  // namespace
}  // namespace muster
