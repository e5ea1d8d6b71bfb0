#include <functional>
#include <thread>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

TEST(ShardedFaults, StaysUsableAfterExceptionsInForwardAndBackward) {
  Reference reference(make_net(), 2);
  reference.train(3);
  for (const auto& options : all_stages()) {
    SCOPED_TRACE(name_of(options));
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net();
      ShardedModel model(*net, group, options);
      torch::optim::AdamW adam(net->parameters(), adamw());
      optim::FusedStep optimizer(adam, {&model});
      for (int s = 0; s < 3; ++s) {
        auto words = words_of(s, group.rank());
        EXPECT_THROW(
            {
              const ForwardScope scope(model);
              auto hidden = net->encoder->layers[0]->as<nn::TransformerEncoderLayer>()->forward(net->embed(words));
              net->head(hidden.narrow(2, 0, 3));  // shapes do not fit
            },
            c10::Error);
        EXPECT_EQ(model.stats().temporary_bytes, 0);
        if (options.stage == ShardStage::full) {
          EXPECT_EQ(model.stats().gathered_bytes, 0);
        }
        model.enter_forward();
        auto hidden = Throwing::apply(net->embed(words));
        auto bad = loss_of(net->head(net->encoder(hidden)), words);
        model.leave_forward();
        EXPECT_THROW(backward(model, bad), std::runtime_error);
        optimizer.zero_grad();
        backward(model, loss_of(forward(model, net, words), words));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_state(model, reference.net, true);
    });
  }
}

/// A rank without a loss reduces alone what its earlier backwards have collected.
TEST(ShardedFaults, AReductionAloneThatIsRefusedKeepsTheGradientsThatWait) {
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients})
    on_seeded_ranks(2, [&](comm::Communicator group) {
      const auto words = words_of(0, group.rank());
      auto net = make_net(), other = make_net();
      ShardedModel model(*net, group, {.stage = stage}), expected(*other, group, {.stage = stage});
      backward(expected, loss_of(forward(expected, other, words), words));
      model.set_gradient_sync(false);
      backward(model, loss_of(forward(model, net, words), words));
      model.set_gradient_sync(true);
      const auto shown = std::exchange(net->head->bias.mutable_grad(), torch::ones({kWords}));
      EXPECT_THROW(model.start_reduction(), UsageError);  // MU578
      net->head->bias.mutable_grad() = shown;
      model.start_reduction();
      model.finish_reduction();
      const auto sum = expected.gradient_power_sum(other->parameters(), 2);
      EXPECT_GT(sum, 0);
      EXPECT_NEAR(model.gradient_power_sum(net->parameters(), 2), sum, 1e-6 * sum);
    });
}

/// What each rank threw, by its class, when ranks call layers of a list as they please.
std::vector<std::string> fates(const ShardedOptions& options,
                               const std::function<std::vector<size_t>(int step, int rank)>& layers,
                               bool shared_memory) {
  std::vector<std::string> fates(2);
  const comm::ThreadWorldOptions how{.seed = 3, .shared_memory = shared_memory, .timeout = std::chrono::seconds(20)};
  const auto errors = comm::run_thread_world(2, how, [&](comm::Communicator group) {
    nn::ModuleList list;
    for (int i = 0; i < 4; ++i) list->push_back(nn::Linear(8, 8));
    ShardedModel model(*list, group, options);
    for (int s = 0; s < 3; ++s) {
      model.enter_forward();
      auto x = torch::ones({1, 8});
      for (const auto i : layers(s, group.rank())) x = list[i]->as<nn::Linear>()->forward(x);
      model.leave_forward();
      backward(model, x.sum());
    }
  });
  for (size_t r = 0; r < errors.size(); ++r) {
    try {
      if (errors[r]) std::rethrow_exception(errors[r]);
      fates[r] = "ended well";
    } catch (const CommError& error) {
      fates[r] = error.id();
      EXPECT_NE(std::string(error.what()).find("unit '"), std::string::npos) << error.what();
    } catch (const std::exception& error) {
      fates[r] = error.what();
    }
  }
  return fates;
}

void expect_fates_of_branches(bool shared_memory) {
  const std::vector<std::string> both{"MU050", "MU050"}, well{"ended well", "ended well"};
  using Layers = std::vector<size_t>;
  const auto fates_of = [&](const ShardedOptions& options, const std::function<Layers(int step, int rank)>& layers) {
    return fates(options, layers, shared_memory);
  };
  for (const int when : {0, 1, 2}) {  // before there is an order to gather ahead by, and after
    const auto other_order = [&](int s, int rank) {
      return s == when && rank == 1 ? Layers{1, 0, 2, 3} : Layers{0, 1, 2, 3};
    };
    const auto one_less = [&](int s, int rank) {
      return s == when && rank == 1 ? Layers{0, 2, 3} : Layers{0, 1, 2, 3};
    };
    EXPECT_EQ(fates_of({}, other_order), both) << when;
    EXPECT_EQ(fates_of({}, one_less), both) << when;
  }
  const auto all_change = [](int s, int) { return s == 1 ? Layers{2, 0, 3, 1, 2} : Layers{0, 1, 2, 3}; };
  EXPECT_EQ(fates_of({}, all_change), well) << "other orders are fine if all take them";
  const auto differ = [](int, int rank) { return rank == 1 ? Layers{0, 2} : Layers{3, 1, 2, 0}; };
  for (const auto stage : {ShardStage::optimizer, ShardStage::gradients})
    EXPECT_EQ(fates_of({.stage = stage}, differ), well)
        << "where nothing is gathered and reductions have an order of their own";
}

TEST(ShardedFaults, RanksThatTakeDifferentBranchesGetACommErrorOnAll) { expect_fates_of_branches(false); }
TEST(ShardedFaults, SoDoRanksThatHaveOneCopyInCommon) { expect_fates_of_branches(true); }

TEST(ShardedFaults, BackwardOfTwoThreadsAtOnceIsRefused) {  // MU192
  for (const bool announced : {false, true}) {
    auto net = make_net();
    ShardedModel model(*net, comm::Communicator());
    auto words = words_of(0, 0);
    std::string refused;
    std::function<void()> other;
    model.enter_forward();
    auto outer = loss_of(net->head(parallel::testing::Calling::apply(net->encoder(net->embed(words)), &other)), words);
    auto inner = loss_of(net(words), words);
    model.leave_forward();
    other = [&] {  // the head's gradients have arrived, the others have not
      std::thread([&] {
        try {
          inner.backward();
        } catch (const UsageError& error) {
          refused = error.id();
        }
      }).join();
    };
    if (announced) model.before_backward();
    outer.backward();
    if (announced) model.after_backward();
    EXPECT_EQ(refused, "MU192");
    EXPECT_TRUE(model.has_gradient(net->embed->weight));
  }
}

TEST(ShardedFaults, RetainedGraphsAndInferenceMode) {
  for (const auto& options : all_stages())
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(), plain = make_net();
      ShardedModel model(*net, group, options);
      auto words = words_of(0, group.rank());
      {
        c10::InferenceMode inference;
        EXPECT_TRUE(torch::equal(forward(model, net, words), plain(words)));
      }
      EXPECT_EQ(model.stats().temporary_bytes, 0);
      const auto size = [&] { return model.gradient_power_sum(net->parameters(), 1); };
      auto loss = loss_of(forward(model, net, words), words);
      model.before_backward();
      loss.backward({}, /*retain_graph=*/true);
      model.after_backward();
      const auto once = size();
      backward(model, loss);
      EXPECT_NEAR(size(), 2 * once, 1e-5 * once);
    });
}

TEST(ShardedFaults, AForwardOutsideItsScopeIsRefusedWhereParametersStay) {  // MU151
  on_seeded_ranks(2, [&](comm::Communicator group) {
    auto net = make_net();
    ShardedModel model(*net, group, {.stage = ShardStage::gradients});
    auto words = words_of(0, group.rank());
    try {
      backward(model, loss_of(net(words), words));
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.id(), "MU151");
    }
    EXPECT_NO_THROW(backward(model, loss_of(forward(model, net, words), words)));
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
