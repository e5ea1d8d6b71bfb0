#include "parallel/join.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "parallel/replicated_models.h"
#include "parallel/sync_batch_norm.h"

namespace muster::parallel {
namespace {

using comm::Communicator;
namespace lib = torch::optim;
namespace models = muster::parallel::testing;
using Lengths = std::vector<int>;

lib::SGDOptions sgd() { return lib::SGDOptions(0.1).momentum(0.9); }

/// What is left on this rank when ranks have `lengths` batches.
std::vector<at::Tensor> train_joined(const Communicator& group, models::Kind kind, const Lengths& lengths,
                                     JoinOptions options, int* last = nullptr) {
  at::set_num_threads(1);
  const auto net = models::make_net(kind, at::kDouble, 40);
  const auto replicated =
      std::make_shared<ReplicatedModel>(*net, group, DdpOptions{.bucket_cap_mb = 0.004, .first_bucket_mb = 0.001});
  lib::SGD inner(net->parameters(), sgd());
  optim::FusedStep optimizer(inner, {replicated.get()});
  auto loop = [&] {
    for (int step = 0; step < lengths[group.rank()]; ++step) {
      models::backward(
          *replicated,
          models::loss_of(models::run(*replicated, *net, models::draw_part(*net, 4, step, group.rank(), at::kDouble))));
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  join_uneven_inputs(group, {replicated}, loop, options, {.then = [&](int rank) {
                       if (last) *last = rank;
                     }});
  return models::values(*net);
}

/// One process that computes every rank's part of each step. After it buffers are those of the highest rank that had a
/// batch.
std::vector<at::Tensor> train_alone(const Lengths& lengths, bool by_world_size, models::Kind kind = models::Kind::mlp) {
  at::set_num_threads(1);
  const auto net = models::make_net(kind, at::kDouble, 40);
  lib::SGD optimizer(net->parameters(), sgd());
  const auto buffers = net->buffers();
  const auto read = [&] {
    std::vector<at::Tensor> all;
    for (const auto& buffer : buffers) all.push_back(buffer.clone());
    return all;
  };
  const auto write = [&](const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  };
  auto common = read();
  for (int step = 0; step < std::ranges::max(lengths); ++step) {
    std::vector<std::size_t> active;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank)
      if (step < lengths[rank]) active.push_back(rank);
    std::vector<at::Tensor> after;
    for (const auto rank : active) {
      write(common);
      const auto loss =
          models::loss_of(net->forward(models::draw_part(*net, 4, step, static_cast<int>(rank), at::kDouble)));
      (loss / static_cast<double>(by_world_size ? lengths.size() : active.size())).backward();
      after = read();
    }
    common = std::move(after);
    optimizer.step();
    optimizer.zero_grad();
  }
  write(common);
  return models::values(*net);
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(muster::testing::difference(found[i], expected[i], 1e-12, 1e-12), "");
}

class Join : public ::testing::TestWithParam<Lengths> {};

TEST_P(Join, TrainsAsOneProcessThatSeesEveryBatch) {
  const auto& lengths = GetParam();
  for (const bool by_world_size : {true, false}) {
    const auto expected = train_alone(lengths, by_world_size);
    std::vector<int> last(lengths.size(), -1);
    muster::testing::run_threads(static_cast<int>(lengths.size()), 0, [&](Communicator group) {
      expect_close(train_joined(group, models::Kind::mlp, lengths, {.divide_by_initial_world_size = by_world_size},
                                &last[group.rank()]),
                   expected);
    });
    const bool even = std::ranges::min(lengths) == std::ranges::max(lengths);
    const int longest = static_cast<int>(std::ranges::max_element(lengths) - lengths.begin());
    EXPECT_EQ(last, std::vector<int>(lengths.size(), even ? -1 : longest));
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, Join,
                         ::testing::Values(Lengths{5, 3}, Lengths{3, 5}, Lengths{1, 4, 2}, Lengths{0, 2}, Lengths{2, 2},
                                           Lengths{0, 0}));

TEST(JoinUnevenInputs, BuffersComeFromARankThatHasABatch) {
  for (const auto& lengths : {Lengths{1, 4, 2}, Lengths{4, 1, 2}, Lengths{1, 2, 4}}) {
    const auto expected = train_alone(lengths, true, models::Kind::cnn);
    muster::testing::run_threads(
        3, 0, [&](Communicator group) { expect_close(train_joined(group, models::Kind::cnn, lengths, {}), expected); });
  }
}

/// What each of two ranks throws when rank 0, which has three batches, gathers `mine` in each step, and rank 1 has only
/// one.
std::vector<std::string> gathers_inside(const at::Tensor& mine) {
  std::vector<std::string> texts(2);
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const auto replicated = std::make_shared<ReplicatedModel>(*net, group);
    texts[group.rank()] = muster::testing::thrown([&] {
      join_uneven_inputs(group, {replicated}, [&] {
        for (int step = 0; step < (group.rank() == 0 ? 3 : 1); ++step) {
          models::backward(*replicated,
                           models::loss_of(models::run(*replicated, *net,
                                                       models::draw_part(*net, 4, step, group.rank(), at::kDouble))));
          net->zero_grad();
          EXPECT_TRUE(torch::equal(group.all_gather(mine), torch::stack({mine, mine})));
        }
      });
    });
  });
  return texts;
}

TEST(JoinUnevenInputs, ACollectiveOfTheProgramIsNotTakenForOneOfTheLibrary) {
  for (const int64_t large : {int64_t{0}, int64_t{1} << 40})
    for (const int64_t first : {0, 1}) {
      for (const auto& text : gathers_inside(torch::tensor({first, large}))) {
        EXPECT_TRUE(text.starts_with("MU050")) << text;
        EXPECT_NE(text.find("rank 0 called all_gather of int64 [2], rank 1 called the library's all_gather of int64"),
                  std::string::npos)
            << text;
        EXPECT_NE(text.find("for join_uneven_inputs"), std::string::npos) << text;
      }
    }
}

TEST(JoinUnevenInputs, WhatNoRankSaysIsNoIndex) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto net = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const auto replicated = std::make_shared<ReplicatedModel>(*net, group);
    if (group.rank() == 0) {
      group.internal("join_uneven_inputs")
          .all_gather(torch::tensor(
              {static_cast<int64_t>(JoinEvent::gradients), int64_t{1} << 40, int64_t{0}, int64_t{1}, int64_t{0}}));
      return;
    }
    EXPECT_EQ(muster::testing::thrown_id([&] { join_uneven_inputs(group, {replicated}, [] {}); }), "MU050");
  });
}

TEST(JoinUnevenInputs, RanksThatNameOtherModelsAreAnErrorOnBoth) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto one = models::make_net(models::Kind::mlp, at::kDouble, 40),
               two = models::make_net(models::Kind::mlp, at::kDouble, 40);
    std::vector<std::shared_ptr<ManagedModel>> named{std::make_shared<ReplicatedModel>(*one, group),
                                                     std::make_shared<ReplicatedModel>(*two, group)};
    auto second = named[1];
    if (group.rank() == 1) named.pop_back();
    EXPECT_EQ(muster::testing::thrown_id([&] {
                join_uneven_inputs(group, named, [&] {
                  if (group.rank() == 0)
                    models::backward(*second, models::loss_of(models::run(
                                                  *second, *two, models::draw_part(*two, 4, 0, 0, at::kDouble))));
                });
              }),
              "MU118");
  });
}

TEST(JoinUnevenInputs, WorksBetweenProcesses) {
  muster::testing::expect_processes(2, [](Communicator group) {
    expect_close(train_joined(group, models::Kind::mlp, {5, 3}, {}), train_alone({5, 3}, true));
  });
}

TEST(JoinUnevenInputs, TheReducerIsAsBeforeAfterwards) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto net = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const auto replicated = std::make_shared<ReplicatedModel>(*net, group);
    auto step = [&] {
      models::backward(*replicated, models::loss_of(models::run(
                                        *replicated, *net, models::draw_part(*net, 4, 0, group.rank(), at::kDouble))));
    };
    step();
    const auto expected = models::gradients(*net);
    net->zero_grad();
    join_uneven_inputs(group, {replicated},
                       [&] {
                         for (int i = 0; i <= group.rank(); ++i) step();
                       },
                       {.divide_by_initial_world_size = false});
    if (group.rank() == 0) {
      EXPECT_FALSE(net->parameters()[0].grad().defined());
    }  // of a step that the other rank made alone
    net->zero_grad();
    step();
    expect_close(models::gradients(*net), expected);
  });
}

TEST(JoinUnevenInputs, AFailureReachesTheRanksThatGoOn) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto net = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const auto replicated = std::make_shared<ReplicatedModel>(*net, group);
    auto loop = [&] {
      if (group.rank() == 1) throw std::runtime_error("no more batches, but not well");
      models::backward(*replicated,
                       models::loss_of(models::run(*replicated, *net, models::draw_part(*net, 4, 0, 0, at::kDouble))));
    };
    if (group.rank() == 1) EXPECT_THROW(join_uneven_inputs(group, {replicated}, loop), std::runtime_error);
    else EXPECT_EQ(muster::testing::thrown_id([&] { join_uneven_inputs(group, {replicated}, loop); }), "MU119");
  });
}

TEST(JoinUnevenInputs, RanksThatTrainDifferentModelsAreAnError) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto one = models::make_net(models::Kind::mlp, at::kDouble, 40),
               two = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const std::vector<std::shared_ptr<ManagedModel>> both{std::make_shared<ReplicatedModel>(*one, group),
                                                          std::make_shared<ReplicatedModel>(*two, group)};
    auto& net = group.rank() == 0 ? *one : *two;
    auto& model = *both[group.rank()];
    EXPECT_EQ(muster::testing::thrown_id([&] {
                join_uneven_inputs(group, both, [&] {
                  models::backward(
                      model, models::loss_of(models::run(model, net, models::draw_part(net, 4, 0, 0, at::kDouble))));
                });
              }),
              "MU118");
  });
}

TEST(JoinUnevenInputs, ModelsThatCannotWaitAreRefused) {
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto net = models::make_net(models::Kind::mlp, at::kDouble, 40);
    const auto single = std::make_shared<SingleDeviceModel>(*net);
    EXPECT_EQ(muster::testing::thrown_id([&] { join_uneven_inputs(group, {single}, [] {}); }), "MU117");
  });
  std::vector<std::string> texts(2);
  comm::run_thread_world(2, {.timeout = std::chrono::seconds(5)}, [&](Communicator group) {
    const auto net = models::make_net(models::Kind::cnn, at::kDouble, 40);
    const auto replicated = std::make_shared<ReplicatedModel>(*net, group);
    convert_sync_batchnorm(*net, group);
    texts[group.rank()] = muster::testing::thrown([&] {
      join_uneven_inputs(group, {replicated}, [&] {
        for (int step = 0; step <= group.rank(); ++step)
          models::backward(*replicated,
                           models::loss_of(models::run(*replicated, *net,
                                                       models::draw_part(*net, 4, step, group.rank(), at::kDouble))));
      });
    });
  });
  for (const auto& text : texts) {
    EXPECT_TRUE(text.starts_with("MU117")) << text;
    EXPECT_NE(text.find("the batch normalization 'norm' takes its statistics from all ranks"), std::string::npos)
        << text;
  }
  int ran = 0;
  join_uneven_inputs(Communicator(), {}, [&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace muster::parallel
