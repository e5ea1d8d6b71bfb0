#include "muster/base/error.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded {
namespace {

std::string id_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.id();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing thrown";
}

std::vector<ShardedOptions> kinds() {
  return {{},
          {.stage = ShardStage::gradients},
          {.param_dtype = "bf16"},
          {.param_dtype = "bf16", .stage = ShardStage::optimizer}};
}

TEST(FullValues, AreWholeOnEveryRankAndFreedAfter) {
  for (const auto& options : kinds())
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(), plain = make_net();
      ShardedModel model(*net, group, options);
      int calls = 0;
      model.summon_full_params(
          [&] {
            ++calls;
            auto wanted = plain->parameters(), mine = net->parameters();
            for (size_t i = 0; i < mine.size(); ++i)
              EXPECT_TRUE(torch::equal(mine[i].detach().clone(), wanted[i].to(mine[i].scalar_type())));
          },
          {.writeback = false});
      EXPECT_EQ(calls, 1);
      EXPECT_EQ(model.stats().temporary_bytes, 0);
      if (options.stage == ShardStage::full) {
        EXPECT_EQ(model.stats().gathered_bytes, 0);
        EXPECT_EQ(id_of([&] { net->head->weight.norm(); }), "MU161");
      }
    });
}

TEST(FullValues, WritesBackWhatWasWritten) {
  for (const auto& options : kinds())
    for (const bool rank0_only : {false, true})
      on_seeded_ranks(3, [&](comm::Communicator group) {
        auto net = make_net(), plain = make_net();
        ShardedModel model(*net, group, options);
        model.summon_full_params(
            [&] {
              if (rank0_only && group.rank() != 0) {
                if (options.stage == ShardStage::full) {
                  EXPECT_EQ(id_of([&] { net->head->weight.norm(); }), "MU161");
                }
                return;
              }
              at::NoGradGuard no_grad;
              net->head->weight.fill_(0.5);
              net->encoder->layers[1]->as<nn::TransformerEncoderLayer>()->linear1->bias[3] = 7;
            },
            {.rank0_only = rank0_only});
        EXPECT_EQ(model.stats().temporary_bytes, 0);
        {
          at::NoGradGuard no_grad;
          plain->head->weight.fill_(0.5);
          plain->encoder->layers[1]->as<nn::TransformerEncoderLayer>()->linear1->bias[3] = 7;
        }
        expect_state(model, plain, true);  // values that were not written keep every bit, in low precision too
        model.summon_full_params(
            [&] { EXPECT_EQ(net->head->weight.detach().to(at::kFloat).sum().item<float>(), 0.5f * kWords * kWidth); },
            {.writeback = false});
        auto words = words_of(0, group.rank());
        backward(model, loss_of(forward(model, net, words).to(at::kFloat), words));  // and training goes on
      });
}

TEST(FullValues, WritesAndScopesInTheWrongPlaceAreRefused) {  // MU169 MU190
  for (const auto stage : {ShardStage::full, ShardStage::gradients})
    on_seeded_ranks(2, [&](comm::Communicator group) {
      auto net = make_net(), plain = make_net();
      ShardedModel model(*net, group, {.stage = stage});
      const auto zero = [&] { nn::init::zeros_(net->head->bias); };
      EXPECT_EQ(id_of([&] { model.summon_full_params(zero, {.writeback = false}); }), "MU190");
      EXPECT_EQ(id_of([&] { model.summon_full_params([&] { model.summon_full_params([] {}); }); }), "MU169");
      EXPECT_EQ(id_of([&] { model.summon_full_params([&] { forward(model, net, words_of(0, 0)); }); }), "MU169");
      EXPECT_EQ(id_of([&] { model.summon_full_params([&] { model.before_backward(); }); }), "MU169");
      model.enter_forward();
      EXPECT_EQ(id_of([&] { model.summon_full_params([] {}); }), "MU169");
      model.leave_forward();
      expect_state(model, plain, true);
      model.summon_full_params(zero);
      nn::init::zeros_(plain->head->bias);
      expect_state(model, plain, true);
    });
}

void expect_nothing_written_after_a_failure(const comm::Communicator& group, const ShardedOptions& options) {
  auto net = make_net(), plain = make_net();
  ShardedModel model(*net, group, options);
  std::string said;
  try {
    model.summon_full_params([&] {
      nn::init::zeros_(net->head->bias);
      if (group.rank() == 1) throw std::runtime_error("the user's own");
    });
  } catch (const std::exception& error) {
    said = error.what();
  }
  if (group.rank() == 1) EXPECT_EQ(said, "the user's own");
  else
    EXPECT_EQ(said,
              "MU191: nothing was written back by summon_full_params, since its function failed on another rank: rank "
              "1: the user's own");
  expect_state(model, plain, true);
  EXPECT_TRUE(options.stage != ShardStage::full || model.stats().gathered_bytes == 0);
  const at::NoGradGuard no_grad;
  const auto words = words_of(0, 0);
  EXPECT_TRUE(forward(model, net, words).equal(plain->forward(words)));
}

TEST(FullValues, AFailureOnOneRankReachesAllAndNothingIsWritten) {  // MU191
  on_seeded_ranks(2, [&](comm::Communicator group) {
    for (const auto stage : {ShardStage::full, ShardStage::gradients, ShardStage::optimizer})
      for (const bool one_copy : {true, false}) {
        SCOPED_TRACE(static_cast<int>(stage) * 10 + one_copy);
        expect_nothing_written_after_a_failure(group, {.one_copy_per_host = one_copy, .stage = stage});
      }
  });
}

TEST(FullValues, AFailureUnderHybridShardingNamesTheRankInTheJob) {  // MU191
  on_seeded_ranks(4, [&](comm::Communicator group) {
    auto [shards, replicas] = two_by_two(group);
    for (int bad = 0; bad < 4; ++bad) {
      auto net = make_net();
      ShardedModel model(*net, shards, replicas, {});
      std::string said;
      try {
        model.summon_full_params([&] {
          if (group.rank() == bad) throw std::runtime_error("the user's own");
        });
      } catch (const std::exception& error) {
        said = error.what();
      }
      const auto of_others = "failed on another rank: rank " + std::to_string(bad) + ": the user's own";
      EXPECT_TRUE(said.ends_with(group.rank() == bad ? "the user's own" : of_others)) << said;
    }
  });
}

}  // namespace
}  // namespace muster::parallel::sharded
