#include <unistd.h>

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "device/memory.h"
#include "muster/testing/compare.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"

// Dtypes, tied parameters, buffers, optimizers, norms and files of a replicated model.

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;
namespace lib = torch::optim;

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * getpagesize();
}

/// By how many times its parameters' bytes this process grows when a model's parameters move.
double growth_by_set_up() {
  device::keep_freed_memory();
  torch::nn::Sequential net;
  for (int i = 0; i < 16; ++i) net->push_back(torch::nn::Linear(1024, 1024));
  const auto before = resident_bytes();
  ReplicatedModel replicated(*net, Communicator());
  double bytes = 0;
  for (const auto& parameter : net->parameters()) bytes += static_cast<double>(parameter.nbytes());
  return (resident_bytes() - before) / bytes;
}

TEST(ReplicatedModel, MemoryThatParametersHadGoesBackToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer brings an allocator of its own";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork of threads has none of LibTorch's
  // In a process of its own, whose allocator may change. Gradients have memory from now on, at most once.
  EXPECT_EXIT(::_exit(growth_by_set_up() < 1.5 ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(ReplicatedModel, TwoModelsAndSeveralDtypes) {
  on_ranks(2, [](const Communicator& group) {
    Mlp first, second;
    draw_parameters(first, 1);
    draw_parameters(second, 2);
    second.first->to(at::kBFloat16);
    second.second->to(at::kDouble);
    ReplicatedModel one(first, group), two(second, group);
    EXPECT_NE(two.describe().find("in 2 buckets"), std::string::npos) << two.describe();
    const auto input = draw_part(first, 4, 0, group.rank(), at::kFloat);
    at::Tensor joint;
    {
      ForwardScope both(one), scopes(two);
      joint = first.forward(input).sum() +
              second.second(second.first(input.to(at::kBFloat16)).to(at::kDouble)).square().sum().to(at::kFloat);
    }
    one.before_backward();
    two.before_backward();
    joint.backward();
    one.after_backward();
    two.after_backward();
    for (const auto* net : {&first, &second})
      for (const auto& parameter : net->parameters()) {
        auto mine = parameter.grad().clone(), other = mine.clone();
        EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
        group.broadcast(other, 0);
        EXPECT_TRUE(torch::equal(mine, other));
        EXPECT_GT(mine.abs().sum().item<double>(), 0.0);
      }
    // One of them alone.
    backward(two, run(two, *second.first, input.to(at::kBFloat16)).to(at::kDouble).sum() + second.second->weight.sum() +
                      second.second->bias.sum());
  });
}

struct Tied final : torch::nn::Module {
  Tied() {
    first = register_parameter("first", torch::zeros({4, 4}));
    again = register_parameter("again", first);
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(first).tanh().matmul(again); }
  at::Tensor first, again;
};

TEST(ReplicatedModel, TiedParametersCountOnce) {
  on_ranks(2, [](const Communicator& group) {
    Tied net, alone;
    draw_parameters(net, 3);
    draw_parameters(alone, 3);
    ReplicatedModel replicated(net, group);
    EXPECT_NE(replicated.describe().find("1 trainable parameters"), std::string::npos) << replicated.describe();
    backward(replicated, run(replicated, net, input_of(group.rank())).sum());
    for (int rank = 0; rank < 2; ++rank) (alone.forward(input_of(rank)).sum() / 2).backward();
    EXPECT_EQ(muster::testing::difference(net.first.grad(), alone.first.grad()), "");
    EXPECT_TRUE(net.first.is_same(net.again));
    EXPECT_EQ(replicated.full_state(false).size(), 2u);
  });
}

TEST(ReplicatedModel, AGradientThatIsKeptKeepsItsValuesOnceItIsReset) {
  on_ranks(2, [](const Communicator& group) {
    Cnn net;
    draw_parameters(net, 3);
    ReplicatedModel replicated(net, group);
    const auto pass = [&](int step) {
      backward(replicated, loss_of(run(replicated, net, draw_part(net, 4, step, group.rank(), at::kFloat))));
    };
    const auto parameters = net.parameters();
    pass(0);
    std::vector<at::Tensor> kept, copies;
    for (const auto& parameter : parameters) {
      kept.push_back(parameter.grad());
      copies.push_back(parameter.grad().clone());
    }
    pass(0);  // adds to what is kept, as without ranks
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(parameters[i].grad().is_same(kept[i]));
      EXPECT_FALSE(torch::equal(kept[i], copies[i]));
      copies[i] = kept[i].clone();
    }
    net.zero_grad();
    pass(1);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(muster::testing::difference_in_bits(kept[i], copies[i]), "") << i;
      EXPECT_FALSE(torch::equal(parameters[i].grad(), kept[i])) << i;
    }
    const auto* place = parameters[0].grad().const_data_ptr();
    kept.clear();
    net.zero_grad();
    pass(2);
    EXPECT_EQ(parameters[0].grad().const_data_ptr(), place) << "gradients have left their bucket";
  });
}

TEST(ReplicatedModel, BuffersComeFromRankZeroInOneMessage) {
  on_ranks(2, [](const Communicator& group) {
    Cnn net;
    draw_parameters(net, 3);
    ReplicatedModel replicated(net, group);
    Trace trace(group);
    const auto forward = [&] { return run(replicated, net, draw_part(net, 4, 0, group.rank(), at::kFloat)); };
    const auto step = [&] { backward(replicated, loss_of(forward())); };
    const auto is_that_of_rank_zero = [&] {
      auto other = net.norm->running_mean.clone();
      group.broadcast(other, 0);
      return torch::equal(net.norm->running_mean, other);
    };
    forward();
    forward();
    EXPECT_EQ(trace.count("broadcast"), 0u) << "forwards communicate nothing";
    step();
    EXPECT_EQ(trace.count("broadcast"), 1u);
    EXPECT_TRUE(is_that_of_rank_zero());
    replicated.set_gradient_sync(false);
    step();
    EXPECT_EQ(trace.count("broadcast"), 2u) << "the one just above";
    EXPECT_EQ(is_that_of_rank_zero(), group.rank() == 0);
    replicated.set_gradient_sync(true);
    net.norm->running_mean.add_(group.rank());  // what the user changed counts for rank 0's alone
    step();
    EXPECT_TRUE(is_that_of_rank_zero());
    const auto before_evaluation = trace.count("broadcast");
    net.eval();
    forward();
    EXPECT_EQ(trace.count("broadcast"), before_evaluation);
    net.norm->running_mean.add_(group.rank());
    replicated.broadcast_buffers();
    EXPECT_TRUE(is_that_of_rank_zero());

    Cnn local;
    draw_parameters(local, 3);
    ReplicatedModel without(local, group, {.broadcast_buffers = false});
    const auto before = trace.count("broadcast");
    backward(without, loss_of(run(without, local, draw_part(local, 4, 0, group.rank(), at::kFloat))));
    without.broadcast_buffers();
    EXPECT_EQ(trace.count("broadcast"), before);
  });
}

TEST(ReplicatedModel, OptimizersMayComeBeforeOrAfter) {
  on_ranks(2, [](const Communicator& group) {
    std::vector<std::vector<at::Tensor>> results;
    for (const bool before : {true, false}) {
      const auto net = make_net(Kind::cnn, at::kFloat, 3);
      net->parameters()[0].set_data(net->parameters()[0].detach().contiguous(at::MemoryFormat::ChannelsLast));
      std::unique_ptr<lib::AdamW> adamw;
      std::unique_ptr<ReplicatedModel> replicated;
      const auto make = [&] { adamw = std::make_unique<lib::AdamW>(net->parameters(), lib::AdamWOptions(0.01)); };
      if (before) make();
      replicated = std::make_unique<ReplicatedModel>(*net, group);
      if (!before) make();
      optim::FusedStep optimizer(*adamw, {replicated.get()});
      for (int step = 0; step < 3; ++step) {
        backward(*replicated, loss_of(run(*replicated, *net, draw_part(*net, 4, step, group.rank(), at::kFloat))));
        optimizer.note_backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      results.push_back(values(*net));
    }
    for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << i;
  });
}

TEST(ReplicatedModel, OtherOptimizersRunTheirOwnStep) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3), alone = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    lib::RMSprop mine(net->parameters(), lib::RMSpropOptions(0.01)),
        theirs(alone->parameters(), lib::RMSpropOptions(0.01));
    optim::FusedStep optimizer(mine, {&replicated});
    for (int step = 0; step < 3; ++step) {
      backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, step, group.rank(), at::kDouble))));
      optimizer.step();
      optimizer.zero_grad();
      for (int rank = 0; rank < 2; ++rank)
        (loss_of(alone->forward(draw_part(*net, 4, step, rank, at::kDouble))) / 2).backward();
      theirs.step();
      theirs.zero_grad();
    }
    const auto a = values(*net), b = values(*alone);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(muster::testing::difference(a[i], b[i], 1e-10, 1e-10), "");
  });
}

TEST(ReplicatedModel, LocalGradientsCanBeStepped) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3), alone = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    lib::SGD mine(net->parameters(), lib::SGDOptions(0.1)), theirs(alone->parameters(), lib::SGDOptions(0.1));
    optim::FusedStep optimizer(mine, {&replicated});
    replicated.set_gradient_sync(false);
    backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 0, group.rank(), at::kDouble))));
    optimizer.step();
    loss_of(alone->forward(draw_part(*net, 4, 0, group.rank(), at::kDouble))).backward();
    theirs.step();
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_EQ(
          muster::testing::difference(net->parameters()[i].detach(), alone->parameters()[i].detach(), 1e-12, 1e-12),
          "");
  });
}

TEST(ReplicatedModel, NormsStateAndFiles) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::cnn, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 0, group.rank(), at::kDouble))));
    auto twice = net->parameters();
    twice.push_back(twice.front());
    std::vector<at::Tensor> flat;
    for (const auto& parameter : net->parameters()) flat.push_back(parameter.grad().flatten());
    const auto all = torch::cat(flat);
    EXPECT_NEAR(replicated.gradient_power_sum(twice, 2.0), all.square().sum().item<double>(), 1e-12);
    replicated.for_each_gradient(twice, [](const at::Tensor& gradient) { gradient.mul_(2.0); });
    EXPECT_NEAR(replicated.gradient_power_sum(twice, 1.0), 2 * all.abs().sum().item<double>(), 1e-12);
    const auto state = replicated.full_state(true);
    EXPECT_EQ(state.size(), group.rank() == 0 ? 9u : 0u);
    EXPECT_EQ(replicated.full_state(false).size(), 9u);
    EXPECT_EQ(replicated.full_state(false)[0].first, "convolution.weight");
    std::stringstream with, without;
    torch::save(std::static_pointer_cast<Cnn>(net), with);
    torch::save(std::static_pointer_cast<Cnn>(make_net(Kind::cnn, at::kDouble, 3)), without);
    EXPECT_LT(with.str().size(), without.str().size() + 100);
  });
}

}  // namespace
}  // namespace muster::parallel
