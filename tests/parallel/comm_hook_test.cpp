#include "muster/parallel/comm_hook.h"

#include <atomic>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "parallel/replicated/power_sgd.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;
using comm::Communicator;

/// Bytes that one rank hands over in backward.
struct WireBytes {
  std::atomic<int64_t> bytes = 0;
  explicit WireBytes(const Communicator& group) {
    group.observe([this](const comm::OperationEvent& event) { bytes += event.bytes; });
  }
};

struct Wide final : Net {
  explicit Wide() {
    first = register_module("first", torch::nn::Linear(64, 96));
    second = register_module("second", torch::nn::Linear(96, 40));
  }
  at::Tensor forward(at::Tensor x) override { return second(torch::tanh(first(x))); }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 64}, random);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

std::shared_ptr<Wide> make_wide(at::ScalarType dtype) {
  auto net = std::make_shared<Wide>();
  draw_parameters(*net, 3);
  net->to(dtype);
  return net;
}

/// Gradients of the net on one part of the batch of a step, alone.
std::vector<at::Tensor> gradients_alone(const std::shared_ptr<Wide>& net, int step, int rank, at::ScalarType dtype) {
  net->zero_grad();
  loss_of(net->forward(draw_part(*net, 4, step, rank, dtype))).backward();
  return gradients(*net);
}

void step_of(ReplicatedModel& replicated, Net& net, int step, int rank, at::ScalarType dtype) {
  net.zero_grad();
  backward(replicated, loss_of(run(replicated, net, draw_part(net, 4, step, rank, dtype))));
}

TEST(CommHook, CastsHalveTheBytesAndKeepTheGradient) {
  for (const std::string name : {"none", "fp16", "bf16"})
    muster::testing::run_threads(2, 0, [&](Communicator group) {
      const auto net = make_wide(at::kFloat), alone = make_wide(at::kFloat);
      ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.01, .comm_hook = name});
      WireBytes wire(group);
      step_of(replicated, *net, 0, group.rank(), at::kFloat);
      const auto first = gradients_alone(alone, 0, 0, at::kFloat), second = gradients_alone(alone, 0, 1, at::kFloat);
      double worst = 0;
      for (size_t i = 0; i < first.size(); ++i)
        worst = std::max(worst, ((first[i] + second[i]) / 2 - net->parameters()[i].grad()).abs().max().item<double>());
      const int64_t whole = 4 * (64 * 96 + 128 + 96 * 40 + 64), flags = 20 * 4;
      if (name == "none") {
        EXPECT_LT(worst, 1e-7);
        EXPECT_NEAR(static_cast<double>(wire.bytes), static_cast<double>(whole), 300);
      } else {
        EXPECT_EQ(wire.bytes, whole / 2 + flags) << name;
        EXPECT_GT(worst, 0.0) << name;
        EXPECT_LT(worst, name == "fp16" ? 1e-4 : 1e-3) << name;
      }
      EXPECT_EQ(replicated.describe().find("hook " + name) != std::string::npos, name != "none")
          << replicated.describe();
    });
}

/// PowerSGD of one matrix on all ranks, written down plainly.
struct PlainPowerSgd {
  at::Tensor q;
  std::vector<at::Tensor> errors;
  static at::Tensor orthogonal(const at::Tensor& matrix) {
    auto done = matrix.clone();
    for (int64_t i = 0; i < done.size(1); ++i) {
      auto column = done.select(1, i).clone();
      for (int64_t j = 0; j < i; ++j) column -= done.select(1, j) * done.select(1, j).dot(column);
      done.select(1, i).copy_(column / column.norm());
    }
    return done;
  }
  at::Tensor mean(std::vector<at::Tensor> gradients, bool feedback) {
    const auto ranks = static_cast<double>(gradients.size());
    if (errors.empty()) errors.assign(gradients.size(), torch::zeros_like(gradients[0]));
    for (size_t r = 0; r < gradients.size() && feedback; ++r) gradients[r] = gradients[r] + errors[r];
    q = orthogonal(q);
    auto p = torch::zeros({gradients[0].size(0), q.size(1)}, torch::kDouble), next = torch::zeros_like(q);
    for (const auto& gradient : gradients) p += gradient.matmul(q) / ranks;
    p = orthogonal(p);
    for (const auto& gradient : gradients) next += gradient.t().matmul(p) / ranks;
    q = next;
    const auto result = p.matmul(q.t());
    for (size_t r = 0; r < gradients.size(); ++r) errors[r] = gradients[r] - result;
    return result;
  }
};

TEST(CommHook, PowerSgdIsThatOfThePaper) {
  for (const bool feedback : {true, false})
    for (const bool warm : {true, false})
      muster::testing::run_threads(3, 0, [&](Communicator group) {
        const PowerSgdOptions options{
            .rank = 2, .seed = 5, .start_iteration = 2, .use_error_feedback = feedback, .warm_start = warm};
        const auto net = make_wide(at::kDouble), alone = make_wide(at::kDouble);
        ReplicatedModel replicated(*net, group, {.comm_hook = "powersgd", .first_bucket_mb = 25, .power_sgd = options});
        PlainPowerSgd plain[2];
        for (int step = 0; step < 7; ++step) {
          step_of(replicated, *net, step, group.rank(), at::kDouble);
          std::vector<std::vector<at::Tensor>> each;
          for (int rank = 0; rank < 3; ++rank) each.push_back(gradients_alone(alone, step, rank, at::kDouble));
          for (size_t i = 0; i < 4; ++i) {
            auto expected = (each[0][i] + each[1][i] + each[2][i]) / 3;
            if (i % 2 == 0 && step >= 2) {  // the weights; buckets hold them from the last to the first
              auto& own = plain[i / 2];
              const auto sizes = each[0][i].sizes();
              if (step == 2 || !warm)
                own.q = first_factor(sizes[1], 2, factor_seed(5, step, 0, 1 - i / 2), torch::kDouble);
              expected = own.mean({each[0][i], each[1][i], each[2][i]}, feedback);
            }
            EXPECT_EQ(muster::testing::difference(net->parameters()[i].grad(), expected, 1e-8, 1e-10), "")
                << i << ", step " << step;
          }
        }
      });
}

/// Trains six steps at once, and the last three after a load. `last_gradients(group, from, loaded, saved)` starts with
/// step `from`, and saves before the fourth. Returns what each rank saved.
template <class F>
std::vector<State> expect_same_after_a_load(const F& last_gradients) {
  std::vector<State> of_ranks(2);
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    State saved, unused;
    const auto whole = last_gradients(group, 0, {}, saved), resumed = last_gradients(group, 3, saved, unused);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::equal(whole[i], resumed[i])) << i;
    of_ranks[static_cast<size_t>(group.rank())] = saved;
  });
  return of_ranks;
}

TEST(CommHook, PowerSgdGoesOnAfterALoad) {
  const auto last_gradients = [](const Communicator& group, int from, const State& loaded, State& saved) {
    const auto net = make_wide(at::kFloat);
    ReplicatedModel replicated(*net, group,
                               {.bucket_cap_mb = 0.01, .comm_hook = "powersgd", .power_sgd = {.start_iteration = 1}});
    if (!loaded.empty()) replicated.load_comm_hook_state(loaded);
    for (int step = from; step < 6; ++step) {
      if (step == 3) saved = clone(replicated.save_comm_hook_state());
      step_of(replicated, *net, step, group.rank(), at::kFloat);
    }
    return gradients(*net);
  };
  expect_same_after_a_load(last_gradients);
}

/// Parameters that are unfrozen later have buckets after the others; a model that begins with them has other numbers.
TEST(CommHook, PowerSgdFindsItsStateByTheParametersOfABucket) {
  const auto last_gradients = [](const Communicator& group, int from, const State& loaded, State& saved) {
    const auto net = make_wide(at::kFloat);
    const auto train_second = [&](bool on) {
      for (auto& parameter : net->second->parameters()) parameter.requires_grad_(on);
    };
    train_second(from > 0);
    ReplicatedModel replicated(
        *net, group,
        {.bucket_cap_mb = 0.01, .comm_hook = "powersgd", .first_bucket_mb = 0.01, .power_sgd = {.start_iteration = 1}});
    if (!loaded.empty()) {
      replicated.load_comm_hook_state(loaded);
      EXPECT_EQ(replicated.save_comm_hook_state().at("buckets").list().size(), 4U) << "none is in use yet";
    }
    for (int step = from; step < 6; ++step) {
      if (step == 1) train_second(true);
      if (step == 3) saved = clone(replicated.save_comm_hook_state());
      step_of(replicated, *net, step, group.rank(), at::kFloat);
    }
    return gradients(*net);
  };
  for (const auto& saved : expect_same_after_a_load(last_gradients)) EXPECT_EQ(saved.at("buckets").list().size(), 4U);
}

struct TwoShapes final : Net {
  TwoShapes() {
    wide = register_module("wide", torch::nn::Linear(torch::nn::LinearOptions(10, 20).bias(false)));
    narrow = register_module("narrow", torch::nn::Linear(torch::nn::LinearOptions(10, 5).bias(false)));
  }
  at::Tensor forward(at::Tensor x) override { return torch::cat({wide(x), narrow(x)}, 1); }
  at::Tensor draw_input(int64_t batch, at::Generator random) const override {
    return torch::randn({batch, 10}, random);
  }
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
};

/// With rank 2 the wide weight alone is compressed, into as many numbers as both are with rank 1.
TEST(CommHook, PowerSgdTakesUpNoFactorsOfAnotherRank) {
  ::testing::internal::CaptureStderr();
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    State saved;
    for (const int64_t rank : {2, 1}) {
      TwoShapes net;
      draw_parameters(net, 3);
      ReplicatedModel replicated(net, group,
                                 {.comm_hook = "powersgd", .power_sgd = {.rank = rank, .start_iteration = 0}});
      if (!saved.empty()) replicated.load_comm_hook_state(saved);
      for (int step = 0; step < 2; ++step) step_of(replicated, net, step, group.rank(), at::kFloat);
      saved = clone(replicated.save_comm_hook_state());
    }
  });
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("MU570: PowerSGD starts from scratch for a bucket"), std::string::npos) << said;
}

TEST(CommHook, PowerSgdSaysWhatItCannotTakeUp) {  // MU570
  ::testing::internal::CaptureStderr();
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    State saved;
    for (const double bucket_mb : {0.01, 25.}) {
      const auto net = make_wide(at::kFloat);
      ReplicatedModel replicated(*net, group,
                                 {.bucket_cap_mb = bucket_mb,
                                  .comm_hook = "powersgd",
                                  .first_bucket_mb = bucket_mb,
                                  .power_sgd = {.start_iteration = 0}});
      if (!saved.empty()) replicated.load_comm_hook_state(saved);
      for (int step = 0; step < 3; ++step) step_of(replicated, *net, step, group.rank(), at::kFloat);
      saved = clone(replicated.save_comm_hook_state());
    }
    EXPECT_EQ(saved.at("buckets").list().size(), 1U);
  });
  const auto said = ::testing::internal::GetCapturedStderr();
  for (const char* names : {"with first.weight:", "with first.bias:", "with second.weight:", "with second.bias:"}) {
    EXPECT_NE(said.find(names), std::string::npos) << said;
    EXPECT_EQ(said.find(names), said.rfind(names)) << said;
  }
  EXPECT_NE(said.find("MU570: PowerSGD starts from scratch for a bucket"), std::string::npos) << said;
}

TEST(CommHook, PowerSgdSendsFewBytes) {
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = make_wide(at::kFloat);
    ReplicatedModel replicated(*net, group, {.comm_hook = "powersgd", .power_sgd = {.start_iteration = 0}});
    WireBytes wire(group);
    step_of(replicated, *net, 0, group.rank(), at::kFloat);
    EXPECT_EQ(wire.bytes,
              4 * (64 + 96 + 96 + 40 + 96 + 40 + 20));  // both factors of both weights, the biases, the flags
  });
}

TEST(CommHook, PowerSgdCompressesOnlyWhatPays) {
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = make_wide(at::kFloat);
    ReplicatedModel replicated(
        *net, group, {.comm_hook = "powersgd", .power_sgd = {.min_compression_rate = 1e6, .start_iteration = 0}});
    WireBytes wire(group);
    step_of(replicated, *net, 0, group.rank(), at::kFloat);
    EXPECT_GE(wire.bytes, 4 * (64 * 96 + 96 * 40));  // both weights whole
  });
}

TEST(CommHook, PowerSgdTrains) {
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = make_wide(at::kFloat);
    ReplicatedModel replicated(*net, group, {.comm_hook = "powersgd", .power_sgd = {.start_iteration = 5}});
    torch::optim::SGD sgd(net->parameters(), 0.1);
    optim::FusedStep optimizer(sgd, {&replicated});
    const auto input = draw_part(*net, 16, 0, group.rank(), at::kFloat), target = torch::sin(input.narrow(1, 0, 40));
    double first = 0, last = 0;
    for (int step = 0; step < 120; ++step) {
      const auto loss = torch::mse_loss(run(replicated, *net, input), target);
      backward(replicated, loss);
      optimizer.step();
      optimizer.zero_grad();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, 0.5 * first);
    const auto all = group.all_gather(net->first->weight.detach());
    EXPECT_TRUE(torch::equal(all[0], all[1]));
  });
}

TEST(CommHook, TakesTheUsersOwn) {
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = make_wide(at::kDouble), alone = make_wide(at::kDouble);
    size_t buckets = 0;
    const auto hook = make_comm_hook([&](const GradientBucket& bucket, const Communicator& ranks) -> CommHook::Finish {
      ++buckets;
      return [flat = bucket.flat, work = ranks.start_all_reduce(bucket.flat)]() mutable {
        work.wait();
        flat.mul_(2);
      };
    });
    ReplicatedModel replicated(*net, group, {.bucket_cap_mb = 0.01, .custom_hook = hook, .first_bucket_mb = 0.01});
    step_of(replicated, *net, 0, group.rank(), at::kDouble);
    const auto first = gradients_alone(alone, 0, 0, at::kDouble), second = gradients_alone(alone, 0, 1, at::kDouble);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(muster::testing::difference(net->parameters()[i].grad(), first[i] + second[i], 1e-12, 1e-14), "");
    EXPECT_GT(buckets, 1u);
  });
}

TEST(CommHook, AFailedHookLeavesTheReducerUsable) {
  muster::testing::run_threads(2, 0, [&](Communicator group) {
    const auto net = make_wide(at::kDouble);
    bool fail = true;
    const auto hook = make_comm_hook([&](const GradientBucket& bucket, const Communicator& ranks) -> CommHook::Finish {
      return [&fail, work = ranks.start_all_reduce(bucket.flat)]() mutable {
        work.wait();
        if (std::exchange(fail, false)) throw UsageError("MU151", "a failure of the test's own");
      };
    });
    ReplicatedModel replicated(*net, group, {.custom_hook = hook});
    EXPECT_EQ(muster::testing::thrown_id([&] { step_of(replicated, *net, 0, group.rank(), at::kDouble); }), "MU151");
    step_of(replicated, *net, 1, group.rank(), at::kDouble);
    const auto all = group.all_gather(net->first->weight.grad());
    EXPECT_TRUE(torch::equal(all[0], all[1]));
  });
}

/// The gradients of six reductions, with one that is not finite before the fifth.
std::vector<std::vector<at::Tensor>> gradients_of_rounds(const Communicator& group, const DdpOptions& options,
                                                         bool overflows) {
  const auto net = make_wide(at::kFloat);
  ReplicatedModel replicated(*net, group, options);
  std::vector<std::vector<at::Tensor>> all;
  for (int step = 0; step < 6; ++step) {
    if (overflows && step == 4) {
      net->zero_grad();
      const double huge = group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
      backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, 9, group.rank(), at::kFloat))) * huge);
      EXPECT_FALSE(at::isfinite(net->second->weight.grad()).all().item<bool>());
    }
    step_of(replicated, *net, step, group.rank(), at::kFloat);
    all.push_back(gradients(*net));
  }
  return all;
}

TEST(CommHook, AnOverflowLeavesNoTraceInAnyHook) {
  std::vector<std::string> names(kCommHooks.begin(), kCommHooks.end());
  names.emplace_back("custom");
  for (const int world : {2, 3})
    for (const auto& name : names)
      for (const double bucket : {0.01, 25.0})
        muster::testing::run_threads(world, 0, [&](Communicator group) {
          const auto options = [&] {
            DdpOptions chosen{
                .bucket_cap_mb = bucket, .first_bucket_mb = bucket, .power_sgd = {.rank = 2, .start_iteration = 1}};
            if (name == "custom")
              chosen.custom_hook =
                  make_comm_hook([](const GradientBucket& one, const Communicator& ranks) -> CommHook::Finish {
                    return [work = ranks.start_all_reduce(one.flat)]() mutable { work.wait(); };
                  });
            else chosen.comm_hook = name;
            return chosen;
          };
          const auto with = gradients_of_rounds(group, options(), true),
                     without = gradients_of_rounds(group, options(), false);
          for (size_t step = 0; step < with.size(); ++step)
            for (size_t i = 0; i < with[step].size(); ++i)
              EXPECT_TRUE(at::equal(with[step][i], without[step][i]))
                  << name << ", " << world << " ranks, step " << step << ", gradient " << i;
        });
}

TEST(CommHook, RefusesWhatItDoesNotKnow) {
  const auto message = muster::testing::thrown([] { chosen_comm_hook({.comm_hook = "fp8"}); });
  EXPECT_EQ(message.substr(0, 5), "MU157");
  EXPECT_NE(message.find("none, fp16, bf16, powersgd"), std::string::npos);
  EXPECT_EQ(muster::testing::thrown_id(
                [] { chosen_comm_hook({.comm_hook = "fp16", .custom_hook = make_cast_hook(at::kHalf)}); }),
            "MU157");
  EXPECT_EQ(chosen_comm_hook({}), nullptr);
  muster::testing::run_threads(2, 0, [](Communicator group) {
    const auto net = make_wide(at::kDouble);
    ReplicatedModel model(*net, group, {.custom_hook = make_comm_hook([](auto&&...) { return CommHook::Finish(); })});
    EXPECT_EQ(muster::testing::thrown_id([&] { step_of(model, *net, 0, group.rank(), at::kDouble); }), "MU157");
  });
  for (const auto& bad :
       {PowerSgdOptions{.min_compression_rate = 0}, PowerSgdOptions{.rank = 0}, PowerSgdOptions{.start_iteration = -1}})
    EXPECT_EQ(muster::testing::thrown_id([&] { make_power_sgd_hook(bad); }), "MU158");
}

}  // namespace
}  // namespace muster::parallel
