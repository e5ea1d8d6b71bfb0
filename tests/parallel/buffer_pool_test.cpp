#include "parallel/sharded/buffer_pool.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::parallel {
namespace {

TEST(BufferPool, LendsTheSameMemoryAgainWhereItFits) {
  BufferPool buffers;
  auto first = buffers.allocate(1000, at::kFloat);
  EXPECT_EQ(first.numel(), 1000);
  EXPECT_EQ(buffers.bytes(), 4000);
  const auto* memory = first.const_data_ptr();
  buffers.release(std::move(first));
  EXPECT_EQ(buffers.bytes(), 4000);
  auto second = buffers.allocate(1900, at::kBFloat16);
  EXPECT_EQ(second.const_data_ptr(), memory);
  EXPECT_EQ(second.scalar_type(), at::kBFloat16);
  auto small = buffers.allocate(10, at::kFloat);
  EXPECT_NE(small.const_data_ptr(), memory);
  EXPECT_EQ(buffers.bytes(), 4040);
  buffers.release(second);
  auto other = buffers.allocate(100, at::kFloat);  // too small a use of 4000 bytes
  EXPECT_NE(other.const_data_ptr(), memory);
  EXPECT_EQ(buffers.peak_bytes(), 4440);
  buffers.trim();
  EXPECT_EQ(buffers.bytes(), 440);
  buffers.forget(other);
  buffers.release({});
  EXPECT_EQ(buffers.bytes(), 40);
}

TEST(BufferPool, LendsSharedMemoryInOneOrderAndToNobodyElse) {
  BufferPool buffers;
  const auto first = torch::zeros({4000}, at::kByte), second = torch::zeros({4000}, at::kByte);
  buffers.add_shared(first);
  buffers.add_shared(second);
  EXPECT_EQ(buffers.shared_bytes(), 8000);
  auto ordinary = buffers.allocate(1000, at::kFloat);
  EXPECT_FALSE(ordinary.is_alias_of(first) || ordinary.is_alias_of(second));
  auto one = buffers.allocate_shared(1000, at::kFloat), two = buffers.allocate_shared(10, at::kFloat),
       none = buffers.allocate_shared(10, at::kFloat);
  EXPECT_TRUE(one.is_alias_of(first) && two.is_alias_of(second));
  EXPECT_EQ(none.storage().nbytes(), 40u);
  EXPECT_EQ(buffers.bytes(), 4040);
  buffers.release(two);
  buffers.release(one);
  EXPECT_FALSE(buffers.allocate_shared(1001, at::kFloat).is_alias_of(first)) << "too large";
  buffers.trim();
  EXPECT_TRUE(buffers.allocate_shared(1, at::kFloat).is_alias_of(first));
}

}  // namespace
}  // namespace muster::parallel
