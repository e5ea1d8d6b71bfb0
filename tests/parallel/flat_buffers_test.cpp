#include "parallel/sharded/flat_buffers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::parallel {
namespace {

TEST(FlatBuffers, LendsTheSameMemoryAgainWhereItFits) {
  FlatBuffers buffers;
  auto first = buffers.take(1000, at::kFloat);
  EXPECT_EQ(first.numel(), 1000);
  EXPECT_EQ(buffers.bytes(), 4000);
  const auto* memory = first.const_data_ptr();
  buffers.give(std::move(first));
  EXPECT_EQ(buffers.bytes(), 4000);
  auto second = buffers.take(1900, at::kBFloat16);
  EXPECT_EQ(second.const_data_ptr(), memory);
  EXPECT_EQ(second.scalar_type(), at::kBFloat16);
  auto small = buffers.take(10, at::kFloat);
  EXPECT_NE(small.const_data_ptr(), memory);
  EXPECT_EQ(buffers.bytes(), 4040);
  buffers.give(second);
  auto other = buffers.take(100, at::kFloat);  // too small a use of 4000 bytes
  EXPECT_NE(other.const_data_ptr(), memory);
  EXPECT_EQ(buffers.peak_bytes(), 4440);
  buffers.trim();
  EXPECT_EQ(buffers.bytes(), 440);
  buffers.lose(other);
  buffers.give({});
  EXPECT_EQ(buffers.bytes(), 40);
}

}  // namespace
}  // namespace muster::parallel
