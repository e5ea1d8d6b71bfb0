#include "parallel/sync_batch_norm.h"

#include <gtest/gtest.h>

#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;
using muster::testing::difference;

/// Its members are the user's own batch normalizations, called as ever.
struct Normal final : Net {
  Normal() {
    convolution = register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)));
    first = register_module("first", torch::nn::BatchNorm2d(6));
    tail = register_module(
        "tail", torch::nn::Sequential(torch::nn::Linear(6, 5),
                                      torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(5).affine(false))));
  }
  at::Tensor forward(at::Tensor x) override { return tail->forward(torch::relu(first(convolution(x))).mean({2, 3})); }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 3, 4, 4}, random);
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d first{nullptr};
  torch::nn::Sequential tail{nullptr};
};

std::shared_ptr<Normal> make_normal() {
  auto net = std::make_shared<Normal>();
  draw_parameters(*net, 9);
  for (auto tensor : net->parameters()) tensor.set_data(tensor.to(at::kDouble));
  for (auto tensor : net->buffers())
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(at::kDouble));
  return net;
}

/// Parts of 2, 3, 4, ... samples.
std::vector<at::Tensor> uneven_parts(const Net& net, int ranks) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(draw_part(net, 2 + rank, 0, rank, at::kDouble) * (1.0 + rank) + rank);
  return parts;
}

void trains_as_one_process(const comm::Communicator& group) {
  const auto net = make_normal(), alone = make_normal();
  const auto weight = net->first->weight, mean = net->first->running_mean;
  EXPECT_EQ(convert_sync_batchnorm(*net, group), 2);
  ReplicatedModel replicated(*net, group, {.broadcast_buffers = false});
  auto parts = uneven_parts(*net, group.size());
  const auto whole = torch::cat(parts).requires_grad_();
  auto input = parts[static_cast<size_t>(group.rank())].requires_grad_();
  const auto out = run(replicated, *net, input), expected = alone->forward(whole);
  backward(replicated, out.sin().sum() * group.size());
  expected.sin().sum().backward();
  int64_t begin = 0;
  for (int rank = 0; rank < group.rank(); ++rank) begin += parts[static_cast<size_t>(rank)].size(0);
  EXPECT_EQ(difference(out.detach(), expected.detach().narrow(0, begin, input.size(0)), 1e-10, 1e-10), "");
  EXPECT_EQ(difference(input.grad() / group.size(), whole.grad().narrow(0, begin, input.size(0)), 1e-10, 1e-10), "");
  for (size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_EQ(difference(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-10, 1e-10), "") << i;
  for (size_t i = 0; i < net->buffers().size(); ++i)
    EXPECT_EQ(difference(net->buffers()[i].clone(), alone->buffers()[i], 1e-10, 1e-10), "") << i;
  EXPECT_TRUE(weight.is_same(net->first->weight) && mean.is_same(net->first->running_mean))
      << "handles taken before stay";
  net->eval();
  alone->eval();
  torch::NoGradGuard no_grad;
  EXPECT_EQ(difference(net->forward(input), alone->forward(input), 1e-10, 1e-10), "") << "evaluation is LibTorch's own";
}

TEST(SyncBatchNorm, TrainsAsOneProcessWithTheWholeBatch) {
  for (const int size : {2, 3})
    muster::testing::run_threads(size, 0, [](comm::Communicator group) {
      at::set_num_threads(1);
      trains_as_one_process(group);
    });
}

TEST(SyncBatchNorm, WithoutItStatisticsDiffer) {
  const auto net = make_normal(), alone = make_normal();
  const auto parts = uneven_parts(*net, 2);
  EXPECT_NE(difference(net->forward(parts[0]), alone->forward(torch::cat(parts)).narrow(0, 0, 2), 1e-10, 1e-10), "");
}

TEST(SyncBatchNorm, TakesEmptyPartsAndHalfPrecision) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto random = generator(5);
    const auto all = torch::randn({6, 4}, random);
    const auto input = group.rank() == 0 ? all.clone().requires_grad_() : torch::zeros({0, 4}).requires_grad_();
    const auto out = sync_batch_norm(group, input, {}, {}, {}, {}, 0.1, 1e-5);
    out.square().sum().backward();
    const auto expected = torch::batch_norm(all, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_TRUE(group.rank() == 1 || torch::allclose(out, expected, 1e-4, 1e-5));
    EXPECT_EQ(input.grad().sizes(), input.sizes());
    const auto half =
        sync_batch_norm(group, all.to(torch::kBFloat16), torch::ones({4}), torch::zeros({4}), {}, {}, 0.1, 1e-5);
    EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
    EXPECT_NEAR(half.to(torch::kFloat).mean().item<double>(), 0.0, 1e-2);
  });
}

TEST(SyncBatchNorm, RefusesWhatItCouldNotFindAgain) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).track_running_stats(false)));
    EXPECT_EQ(muster::testing::thrown_id([&] { convert_sync_batchnorm(*net, group); }), "MU165");
  });
  torch::nn::BatchNorm1d alone(4);
  EXPECT_EQ(convert_sync_batchnorm(*alone, comm::Communicator()), 0);
}

}  // namespace
}  // namespace muster::parallel
