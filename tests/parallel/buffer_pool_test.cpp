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

}  // namespace
}  // namespace muster::parallel
