#include "parallel/replicated_model.h"

#include <chrono>
#include <mutex>

#include <gtest/gtest.h>

#include "hook/gradient_hooks.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "parallel/replicated_models.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;
namespace lib = torch::optim;

template <class F>
void expect_error(const char* id, const std::string& part, F&& call) {
  try {
    call();
    ADD_FAILURE() << "no " << id;
  } catch (const Error& error) {
    EXPECT_EQ(error.id(), id) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

struct TwoHeads final : torch::nn::Module {
  TwoHeads() {
    body = register_module("body", torch::nn::Linear(4, 4));
    left = register_module("left", torch::nn::Linear(4, 2));
    right = register_module("right", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    auto hidden = body(x).tanh();
    auto sum = hidden.sum();
    if (use_left) sum = sum + left(hidden).sum();
    if (use_right) sum = sum + right(hidden).square().sum();
    return sum;
  }
  torch::nn::Linear body{nullptr}, left{nullptr}, right{nullptr};
};

TEST(ReplicatedModel, SetUpTakesValuesOfRankZeroAndKeepsHandles) {
  on_ranks(2, [](const Communicator& group) {
    Cnn net;
    draw_parameters(net, 10 + static_cast<uint64_t>(group.rank()));
    net.norm->running_mean.fill_(group.rank() + 1.0);
    net.head->weight.set_requires_grad(false);
    net.convolution->weight.set_data(net.convolution->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    const auto weight = net.convolution->weight;
    const auto strides = weight.strides().vec();
    const auto version = weight._version();
    ReplicatedModel replicated(net, group);
    Cnn expected;
    draw_parameters(expected, 10);
    for (size_t i = 0; i < net.parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(net.parameters()[i], expected.parameters()[i])) << i;
    EXPECT_EQ(net.norm->running_mean[0].item<float>(), 1.0f);
    EXPECT_EQ(weight.strides().vec(), strides);
    EXPECT_EQ(weight._version(), version);
    EXPECT_TRUE(torch::equal(weight, expected.convolution->weight)) << "the handle taken before sees the values";
    EXPECT_EQ(weight.storage().nbytes(), weight.nbytes()) << "a file of one parameter holds one parameter";
    EXPECT_EQ(replicated.find(net.head->weight), nullptr);
    ASSERT_NE(replicated.find(weight), nullptr);
    EXPECT_EQ(replicated.find(weight)->value.numel() % optim::kFlatPadding, 0);
    EXPECT_NE(replicated.describe().find("2 ranks, 5 trainable parameters and 1 frozen"), std::string::npos)
        << replicated.describe();
  });
}

TEST(ReplicatedModel, RanksMustAgree) {
  on_ranks(3, [](const Communicator& group) {
    const auto with = [&](auto change, const std::string& part) {
      Mlp net;
      if (group.rank() == 1) change(net);
      expect_error("MU150", part, [&] { ReplicatedModel replicated(net, group); });
    };
    with(
        [](Mlp& net) {
          net.second->weight.set_data(torch::zeros({7, 31}));
        },
        "rank 1 has parameter second.weight: Float [7, 31]");
    with([](Mlp& net) { net.second->bias.set_requires_grad(false); }, "rank 0 has parameter second.bias: Float [7]");
    with([](Mlp& net) { net.to(at::kDouble); }, "Double");
    with([](Mlp& net) { net.register_buffer("extra", torch::zeros({1})); }, "rank 1 has buffer extra");
  });
}

TEST(ReplicatedModel, GradientsAreMeansAndViewsOfBuckets) {
  on_ranks(3, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3), alone = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 0, group.rank(), at::kDouble))));
    for (int rank = 0; rank < 3; ++rank)
      (loss_of(alone->forward(draw_part(*net, 4, 0, rank, at::kDouble))) / 3).backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto parameter = net->parameters()[i];
      EXPECT_EQ(muster::testing::difference(parameter.grad(), alone->parameters()[i].grad(), 1e-12, 1e-12), "");
      EXPECT_EQ(parameter.grad().data_ptr(), replicated.find(parameter)->gradient.data_ptr());
      EXPECT_EQ(parameter.grad().strides(), parameter.strides());
    }
  });
}

TEST(ReplicatedModel, AccumulatesLocallyAndReducesTheSumOnce) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3), alone = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    lib::SGD sgd(net->parameters(), lib::SGDOptions(0.1));
    optim::FusedStep optimizer(sgd, {&replicated});
    Trace trace(group);
    for (int window = 0; window < 3; ++window) {
      const auto before = trace.count("all_reduce");
      for (int micro = 0; micro < 3; ++micro) {
        replicated.set_gradient_sync(micro == 2);
        backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, micro, group.rank(), at::kDouble))));
        if (micro == 1) {
          EXPECT_EQ(trace.count("all_reduce"), before) << "nothing is sent without synchronisation";
        }
        for (int rank = 0; rank < 2; ++rank)
          (loss_of(alone->forward(draw_part(*net, 4, micro, rank, at::kDouble))) / 2).backward();
      }
      EXPECT_EQ(trace.count("all_reduce"), before + 1);
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_EQ(muster::testing::difference(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12, 1e-12),
                  "");
      if (window == 1) {
        optimizer.zero_grad(false);
        EXPECT_EQ(net->parameters()[0].grad().abs().sum().item<double>(), 0.0);
      } else {
        optimizer.zero_grad();
        EXPECT_FALSE(net->parameters()[0].grad().defined());
      }
      alone->zero_grad();
    }
  });
}

TEST(ReplicatedModel, BackwardTwiceAndForwardsBeforeOneBackward) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::cnn, at::kDouble, 3), alone = make_net(Kind::cnn, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    const auto part = [&](int step, int rank) { return draw_part(*net, 4, step, rank, at::kDouble); };
    // Two forwards, then one backward: the second broadcast must not spoil what the first forward has saved.
    const auto first = run(replicated, *net, part(0, group.rank())),
               second = run(replicated, *net, part(1, group.rank()));
    const auto loss = loss_of(first) + loss_of(second);
    backward(replicated, loss, /*retain_graph=*/true);
    backward(replicated, loss);
    for (int rank = 0; rank < 2; ++rank)
      for (const int step : {0, 1}) loss_of(alone->forward(part(step, rank))).backward();  // 2 backwards / 2 ranks
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_EQ(muster::testing::difference(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-11, 1e-11),
                "")
          << i;
  });
}

TEST(ReplicatedModel, CommunicationOverlapsBackward) {
  on_ranks(2, [](const Communicator& group) {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(64, 64));
    draw_parameters(*net, 4);
    ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.02, .first_bucket_mb = 0.02});
    Trace trace(group);
    std::chrono::steady_clock::time_point last;
    std::vector<hook::GradientHook> hooks;
    for (const auto& parameter : net->parameters())
      hooks.emplace_back(parameter, [&](const at::Tensor&) { last = std::chrono::steady_clock::now(); });
    const auto input = torch::randn({2, 64}, generator(9));
    at::Tensor output;
    {
      ForwardScope scope(replicated);
      output = net->forward(input);
    }
    backward(replicated, output.sum());
    const std::lock_guard lock(trace.mutex);
    size_t early = 0, all = 0;
    for (const auto& event : trace.events)
      if (event.operation == "all_reduce") {
        ++all;
        early += event.start < last;
      }
    EXPECT_EQ(all, 8u);
    EXPECT_GE(early, 6u) << "buckets start while gradients are still being computed";
  });
}

TEST(ReplicatedModel, UnusedParametersAreNamedOnEveryRank) {
  on_ranks(2, [](const Communicator& group) {
    TwoHeads net;
    draw_parameters(net, 3);
    ReplicatedModel replicated(net, group);
    const auto step = [&](bool left, bool right) {
      at::Tensor loss;
      {
        ForwardScope scope(replicated);
        loss = net.forward(input_of(group.rank()), left, right);
      }
      backward(replicated, loss);
    };
    step(true, true);
    net.zero_grad();
    expect_error("MU152", "no rank has a gradient for 'right.weight', 'right.bias'", [&] { step(true, false); });
    net.zero_grad();
    expect_error("MU152", "assigned over (layer->weight = ...)", [&] { step(true, false); });
    net.zero_grad();
    expect_error("MU152", "only some ranks have a gradient for 'left.weight'", [&] { step(group.rank() == 1, true); });
    net.zero_grad();
    EXPECT_NO_THROW(step(true, true)) << "usable after the error";
    net.right->weight.set_requires_grad(false);
    net.right->bias.set_requires_grad(false);
    net.zero_grad();
    EXPECT_NO_THROW(step(true, true)) << "frozen after prepare";
    EXPECT_FALSE(net.right->weight.grad().defined());
  });
}

TEST(ReplicatedModel, UnusedParametersMayBeAllowed) {
  on_ranks(2, [](const Communicator& group) {
    TwoHeads net, alone;
    draw_parameters(net, 3);
    draw_parameters(alone, 3);
    ReplicatedModel replicated(net, group, {.find_unused_parameters = true});
    for (int i = 0; i < 3; ++i) {
      at::Tensor loss;
      {
        ForwardScope scope(replicated);
        loss = net.forward(input_of(group.rank()), false, group.rank() == 1);
      }
      backward(replicated, loss);
      for (int rank = 0; rank < 2; ++rank) (alone.forward(input_of(rank), false, rank == 1) / 2).backward();
      EXPECT_FALSE(net.left->weight.grad().defined()) << "used by no rank";
      ASSERT_TRUE(net.right->weight.grad().defined()) << "used by one rank";
      EXPECT_EQ(muster::testing::difference(net.right->weight.grad(), alone.right->weight.grad()), "");
      EXPECT_EQ(muster::testing::difference(net.body->weight.grad(), alone.body->weight.grad()), "");
      net.zero_grad();
      alone.zero_grad();
    }
  });
}

TEST(ReplicatedModel, StaticGraphLearnsTheSetAndHoldsToIt) {
  on_ranks(2, [](const Communicator& group) {
    TwoHeads net;
    draw_parameters(net, 3);
    ReplicatedModel replicated(net, group, {.bucket_cap_mb = 0.0001, .first_bucket_mb = 0.0001, .static_graph = true});
    Trace trace(group);
    std::chrono::steady_clock::time_point last;
    hook::GradientHook hook(net.body->weight, [&](const at::Tensor&) { last = std::chrono::steady_clock::now(); });
    const auto step = [&](bool left, bool right) {
      at::Tensor loss;
      {
        ForwardScope scope(replicated);
        loss = net.forward(input_of(group.rank()), left, right);
      }
      backward(replicated, loss);
    };
    for (int i = 0; i < 3; ++i) {
      step(true, false);
      EXPECT_FALSE(net.right->weight.grad().defined());
      EXPECT_TRUE(net.left->weight.grad().defined());
      net.zero_grad();
    }
    {
      const std::lock_guard lock(trace.mutex);
      size_t early = 0;
      for (const auto& event : trace.events) early += event.operation == "all_reduce" && event.start < last;
      EXPECT_GE(early, 4u) << "unused parameters do not hold up the buckets once they are known";
    }
    expect_error("MU155", "static_graph", [&] { step(false, true); });
  });
}

TEST(ReplicatedModel, ActivationGradientsWorkAndParameterGradientsAreRefused) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kFloat, 3);
    ReplicatedModel replicated(*net, group);
    Trace trace(group);
    const auto input = draw_part(*net, 4, 0, group.rank(), at::kFloat).requires_grad_();
    const auto output = run(replicated, *net, input);
    const auto slope = torch::autograd::grad({output.sum()}, {input}, {}, true, /*create_graph=*/true)[0];
    EXPECT_EQ(trace.count("all_reduce"), 0u);
    EXPECT_FALSE(net->parameters()[0].grad().defined());
    expect_error("MU153", "'first.weight'",
                 [&] { torch::autograd::grad({output.sum()}, {net->parameters()[0]}, {}, true); });
    expect_error("MU153", "create_graph", [&] { output.sum().backward({}, true, /*create_graph=*/true); });
    net->zero_grad();
    backward(replicated, output.square().sum() + slope.square().sum());  // a gradient penalty
    EXPECT_EQ(trace.count("all_reduce"), 1u);
    auto mine = net->parameters()[0].grad().clone(), first = mine.clone();
    group.broadcast(first, 0);
    EXPECT_TRUE(torch::equal(mine, first));
  });
}

TEST(ReplicatedModel, AnExceptionInBackwardLeavesItUsable) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.0001, .first_bucket_mb = 0.0001});
    auto* mlp = dynamic_cast<Mlp*>(net.get());
    for (const bool through_us : {true, false}) {
      const auto hidden = run(replicated, *mlp->second, torch::ones({2, 32}, at::kDouble)).sum();
      auto broken = (mlp->first->weight * 1).sum() * hidden;
      hook::GradientHook stop(mlp->first->weight, [](const at::Tensor&) { throw std::runtime_error("stop"); });
      EXPECT_THROW(through_us ? backward(replicated, broken) : broken.backward(), std::runtime_error);
    }
    net->zero_grad();
    backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 0, group.rank(), at::kDouble))));
    const auto alone = make_net(Kind::mlp, at::kDouble, 3);
    for (int rank = 0; rank < 2; ++rank)
      (loss_of(alone->forward(draw_part(*net, 4, 0, rank, at::kDouble))) / 2).backward();
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_EQ(muster::testing::difference(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12, 1e-12),
                "");
  });
}

TEST(ReplicatedModel, BypassedForwardsSparseGradientsAndMovesAreRefused) {
  on_ranks(2, [](const Communicator& group) {
    const auto net = make_net(Kind::mlp, at::kFloat, 3);
    ReplicatedModel replicated(*net, group);
    const auto input = draw_part(*net, 4, 0, group.rank(), at::kFloat);
    expect_error("MU151", "model(x)", [&] { backward(replicated, loss_of(net->forward(input))); });
    expect_error("MU151", "model(x)", [&] { loss_of(net->forward(input)).backward(); });
    replicated.set_gradient_sync(false);
    expect_error("MU151", "model(x)", [&] { backward(replicated, loss_of(net->forward(input))); });
    replicated.set_gradient_sync(true);
    const auto output = run(replicated, *net, input);
    EXPECT_NO_THROW(backward(replicated, loss_of(output), true));
    EXPECT_NO_THROW(backward(replicated, output.sum() + net->parameters()[0].square().sum()));

    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    ReplicatedModel sparse(*table, group);
    expect_error("MU154", "'weight'", [&] { backward(sparse, run(sparse, *table, torch::tensor({1, 2})).sum()); });

    net->to(at::kDouble);
    expect_error("MU156", "moved", [&] { run(replicated, *net, input); });
  });
}

}  // namespace
}  // namespace muster::parallel
