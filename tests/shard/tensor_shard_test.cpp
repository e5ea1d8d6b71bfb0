#include "muster/shard/tensor_shard.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::shard {
namespace {

TEST(TensorShard, SelectsItsRunInTheOrderOfMemory) {
  const auto images = torch::arange(2 * 3 * 4 * 5).view({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  TensorShard shard{.name = "images", .shape = {}, .begin = 7, .local = torch::empty(11)};
  shard.order = memory_order(images);
  shard.shape = permuted(images.sizes(), shard.order);
  EXPECT_EQ(shard.order, (std::vector<int64_t>{0, 2, 3, 1}));
  EXPECT_EQ(shard.shape, (std::vector<int64_t>{2, 4, 5, 3}));
  const auto in_memory = torch::from_blob(images.mutable_data_ptr(), {images.numel()}, images.options());
  EXPECT_TRUE(torch::equal(select(images, shard), in_memory.narrow(0, 7, 11)));
  EXPECT_TRUE(torch::equal(images.permute(shard.order).permute(inverse(shard.order)), images));
}

TEST(TensorShard, WithoutAnOrderIsARunOfRows) {
  const auto rows = torch::arange(12).view({4, 3});
  const TensorShard shard{.name = "rows", .shape = {4, 3}, .begin = 6, .local = torch::empty({2, 3})};
  EXPECT_TRUE(torch::equal(select(rows, shard), torch::arange(6, 12)));
}

TEST(TensorShard, OfAScalarIsItsElement) {
  const auto one = torch::tensor(3.5);
  EXPECT_TRUE(memory_order(one).empty());
  const TensorShard shard{.name = "one", .shape = {}, .begin = 0, .local = torch::empty(1)};
  EXPECT_EQ(select(one, shard).item<double>(), 3.5);
}

}  // namespace
}  // namespace muster::shard
