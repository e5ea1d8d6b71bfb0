// Backward within backward, as recompute written by hand has it: gradients are those of one process that does the same.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/testing/compare.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"

namespace muster::parallel::nested {
namespace {

using namespace muster::parallel::testing;
using at::Tensor;
using comm::Communicator;

/// Where the layers are computed again.
enum class Where { first, last, middle, all, twice, tied };
constexpr Where kEverywhere[] = {Where::first, Where::last, Where::middle, Where::all, Where::twice, Where::tied};

struct Layers : torch::nn::Module {
  explicit Layers(Where where) : where(where) {
    draw_parameters(*this, 4);
    to(at::kDouble);
    parts = {[this](const Tensor& x) { return torch::tanh(a(x)); },
             [this](const Tensor& x) { return torch::tanh(b(x)); }, [this](const Tensor& x) { return c(x); },
             [this](const Tensor& x) { return c(torch::tanh(b(torch::tanh(a(x))))); }};
  }
  Tensor again(size_t part, const Tensor& x) { return Again::apply(x, &parts[part]); }
  Tensor forward(const Tensor& input) {
    const auto x = input.clone().requires_grad_();
    switch (where) {
      case Where::first: return parts[2](parts[1](again(0, x)));
      case Where::last: return again(2, parts[1](parts[0](x)));
      case Where::middle: return parts[2](again(1, parts[0](x)));
      case Where::all: return again(3, x);
      case Where::twice: return parts[2](again(1, again(1, again(0, x))));  // gradients of b come in two backwards
      case Where::tied: return parts[2](again(2, parts[1](again(0, x))));   // of c, first outside and then within
    }
    return {};
  }
  Where where;
  torch::nn::Linear a{register_module("a", torch::nn::Linear(6, 6))}, b{register_module("b", torch::nn::Linear(6, 6))},
      c{register_module("c", torch::nn::Linear(6, 6))};
  std::vector<Part> parts;
};

Tensor input_of(int rank) { return torch::randn({3, 6}, generator(50 + static_cast<uint64_t>(rank))).to(at::kDouble); }

std::vector<Tensor> expected(Where where, int world, int backwards) {
  Layers alone(where);
  for (int i = 0; i < backwards; ++i)
    for (int rank = 0; rank < world; ++rank) (loss_of(alone.forward(input_of(rank))) / world).backward();
  return gradients(alone);
}

void expect_gradients(Where where, int world, const DdpOptions& options, bool announced, int micro) {
  const auto wanted = expected(where, world, micro);
  on_ranks(world, [&](const Communicator& group) {
    Layers net(where);
    ReplicatedModel replicated(net, group, options);
    for (int i = 0; i < 3; ++i) {
      net.zero_grad();
      for (int m = 0; m < micro; ++m) {
        replicated.set_gradient_sync(m + 1 == micro);
        const auto loss = loss_of(run(replicated, net, input_of(group.rank())));
        announced ? backward(replicated, loss) : loss.backward();
      }
      const auto found = gradients(net);
      for (size_t p = 0; p < found.size(); ++p)
        EXPECT_EQ(muster::testing::difference(found[p], wanted[p], 1e-12, 1e-12), "")
            << p << ", where " << static_cast<int>(where) << (announced ? ", announced" : "") << ", " << micro
            << " micro-batches, buckets of " << options.bucket_cap_mb
            << (options.find_unused_parameters ? ", unused allowed" : "");
    }
  });
}

TEST(NestedBackward, ReplicatedGradientsAreMeansOverRanks) {
  for (const auto where : kEverywhere)
    for (const int world : {2, 3})
      for (const double bucket : {1e-4, 25.0})
        for (const bool unused : {false, true})
          for (const bool announced : {true, false})
            for (const int micro : {1, 2})
              expect_gradients(where, world,
                               {.bucket_cap_mb = bucket, .find_unused_parameters = unused, .first_bucket_mb = bucket},
                               announced, micro);
}

TEST(NestedBackward, ShardedGradientsTrainAsOneProcess) {
  for (const auto where : kEverywhere)
    for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full})
      on_ranks(2, [&](const Communicator& group) {
        Layers net(where), alone(where);
        ShardedModel model(net, group, {.stage = stage, .unit_min_elements = 1});
        torch::optim::SGD sgd(net.parameters(), 0.1), plain(alone.parameters(), 0.1);
        optim::FusedStep optimizer(sgd, {&model});
        for (int i = 0; i < 2; ++i) {
          optimizer.zero_grad();
          plain.zero_grad();
          backward(model, loss_of(run(model, net, input_of(group.rank()))));
          for (int rank = 0; rank < 2; ++rank) (loss_of(alone.forward(input_of(rank))) / 2).backward();
          optimizer.step();
          plain.step();
        }
        const auto wanted = alone.parameters();
        const auto found = model.full_state(false);
        for (size_t p = 0; p < wanted.size(); ++p)
          EXPECT_EQ(muster::testing::difference(found[p].second, wanted[p].detach(), 1e-12, 1e-12), "")
              << found[p].first << ", where " << static_cast<int>(where) << ", stage " << static_cast<int>(stage);
      });
}

}  // namespace
}  // namespace muster::parallel::nested
