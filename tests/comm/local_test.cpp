#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/comm/rendezvous.h"
#include "muster/testing/compare.h"

namespace muster::comm {
namespace {

using testing::difference_in_bits;

TEST(Fake, ActsAsOneRankOfManyWithEqualValues) {
  Communicator comm = make_fake(2, 5);
  EXPECT_EQ(comm.rank(), 2);
  EXPECT_EQ(comm.size(), 5);
  EXPECT_EQ(comm.backend(), "fake");
  at::Tensor tensor = at::full({3}, 2.f);
  comm.all_reduce(tensor);
  EXPECT_EQ(difference_in_bits(tensor, at::full({3}, 10.f)), "");
  comm.all_reduce(tensor, ReduceOp::mean);
  comm.start_all_reduce(tensor, ReduceOp::max).wait();
  EXPECT_EQ(difference_in_bits(tensor, at::full({3}, 10.f)), "");
  at::Tensor power = at::full({1}, 2, at::kLong);
  comm.all_reduce(power, ReduceOp::product);
  EXPECT_EQ(power.item<int64_t>(), 32);
  EXPECT_EQ(comm.all_gather(at::ones({4})).sizes(), at::IntArrayRef({5, 4}));
  EXPECT_EQ(comm.all_gatherv(at::ones({4})).size(), 5u);
  at::Tensor piece = at::empty({2});
  comm.reduce_scatter(piece, at::arange(10, at::kFloat));
  EXPECT_EQ(difference_in_bits(piece, at::tensor({20.f, 25.f})), "");
  EXPECT_EQ(comm.gather(at::ones({1}), 0).size(), 0u);
  EXPECT_EQ(comm.gather(at::ones({1}), 2).size(), 5u);
  EXPECT_EQ(comm.all_gather_bytes("abc").at(4), "abc");
  EXPECT_EQ(comm.subgroup({1, 2}).rank(), 1);
  EXPECT_EQ(comm.subgroup({1, 2}).size(), 2);
  EXPECT_EQ(comm.subgroup({0, 4}).size(), 1);
  comm.barrier();
}

TEST(Fake, SaysWhatItCannotKnow) {
  Communicator comm = make_fake(1, 3);
  try {
    comm.scatter({}, 0);
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_EQ(error.id(), "MU061");
  }
}

TEST(WorldOfOne, IsTheIdentity) {
  Communicator comm;
  at::Tensor tensor = at::arange(6, at::kFloat), before = tensor.clone();
  for (auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product})
    comm.all_reduce(tensor, op);
  comm.broadcast(tensor);
  at::Tensor out = at::empty({6});
  comm.start_all_gather_into(out, tensor).wait();
  comm.start_all_gather_into(tensor, tensor).wait();
  EXPECT_EQ(difference_in_bits(tensor, before), "");
  EXPECT_EQ(difference_in_bits(out, before), "");
  EXPECT_EQ(comm.backend(), "none");
  EXPECT_EQ(comm.subgroup({0}).size(), 1);
  EXPECT_EQ(comm.broadcast_bytes("x"), "x");
}

}  // namespace
}  // namespace muster::comm
