#include <atomic>
#include <memory>

#include "parallel/gathered_elements.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

TEST(PostForwardShards, KeepWholeValuesUntilBackward) {
  for (const int micro : {1, 2}) {
    Reference reference(make_net(true, at::kDouble), 4);
    reference.train(3, micro);
    on_seeded_ranks(4, [&](comm::Communicator group) {
      expect_rank_like(reference, group, at::kDouble, micro, /*exact=*/false, {.reshard_after_forward = 2});
    });
  }
}

TEST(PostForwardShards, SpareTheOthersTheGathersOfBackwardAndGiveTheSameBits) {
  on_seeded_ranks(4, [](comm::Communicator group) {
    std::vector<std::vector<std::pair<std::string, Tensor>>> results;
    const ShardedOptions kept{.reshard_after_forward = 2}, freed{};
    for (const auto* options : {&freed, &kept}) {
      auto net = make_net();
      torch::optim::AdamW adam(net->parameters(), adamw());
      ShardedModel model(*net, group, *options);
      optim::FusedStep optimizer(adam, {&model});
      const auto counter = std::make_shared<std::atomic<int64_t>>(0);
      auto& gathered = *counter;
      const auto once = GatheredElements(*net, 4).all;
      group.observe([counter](const comm::OperationEvent& event) {
        if (event.operation == "all_gather") *counter += event.bytes / 4 * 3;
      });
      for (int s = 0; s < 3; ++s) {
        gathered = 0;
        const auto before = model.stats().gathers;
        auto words = words_of(s, group.rank());
        auto loss = loss_of(forward(model, net, words), words);
        if (options == &kept) {
          EXPECT_EQ(gathered, once);
          EXPECT_GT(model.stats().temporary_bytes, 0);
        }
        backward(model, loss);
        if (options == &kept) {
          EXPECT_EQ(gathered, once);  // nothing more in backward
        }
        EXPECT_EQ(model.stats().gathers - before, 7);  // of four units, the root's once
        EXPECT_EQ(model.stats().temporary_bytes, 0);
        optimizer.step();
        optimizer.zero_grad();
      }
      results.push_back(model.full_state(false));
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(torch::equal(results[0][i].second, results[1][i].second)) << results[0][i].first;
  });
}

TEST(PostForwardShards, ForgetWhatAForwardWithoutBackwardLeft) {
  on_seeded_ranks(4, [](comm::Communicator group) {
    auto net = make_net();
    ShardedModel model(*net, group, {.reshard_after_forward = 2});
    const auto words = words_of(0, group.rank());
    const auto first = forward(model, net, words).detach().clone();
    EXPECT_GT(model.stats().temporary_bytes, 0);
    model.summon_full_params([&] {
      at::NoGradGuard no_grad;
      net->head->bias.add_(1);
      net->encoder->layers[0]->as<nn::TransformerEncoderLayer>()->linear1->bias.add_(1);
    });
    EXPECT_EQ(model.stats().temporary_bytes, 0);
    at::NoGradGuard no_grad;
    EXPECT_FALSE(torch::equal(forward(model, net, words), first));
    EXPECT_EQ(model.stats().temporary_bytes, 0);  // without gradients nothing waits for backward
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
