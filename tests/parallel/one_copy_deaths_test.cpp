// A rank that dies at any place of a training leaves to the others values of one step, or torn ones.
#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>

#include "muster/base/error.h"
#include "parallel/sharded_models.h"

namespace muster::parallel::sharded::one_copy_deaths {
namespace {

using Values = std::vector<Tensor>;

/// A model that is trained fast, as its ranks' full values are after each step.
struct Small {
  explicit Small(const comm::Communicator& group)
      : group(group), model(*net, group, {.stage = ShardStage::optimizer}), optimizer(adam, {&model}) {}
  void step() {
    model.enter_forward();
    const auto loss = net->forward(torch::full({2, 9}, group.rank() + 0.5)).square().mean();
    model.leave_forward();
    backward(model, loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  /// The values as this rank can read them without the others; none if they are torn.
  Values readable() {
    const at::NoGradGuard no_grad;
    Values values;
    try {
      for (const auto& parameter : net->parameters()) values.push_back(parameter.clone());
    } catch (const CommError& error) {
      EXPECT_EQ(error.id(), "MU540");
      values.clear();
    }
    return values;
  }
  static nn::Sequential make() {
    static std::mutex mutex;
    std::scoped_lock lock(mutex);
    torch::manual_seed(4);
    return nn::Sequential(nn::Linear(9, 70), nn::Linear(70, 3));
  }

  comm::Communicator group;
  nn::Sequential net = make();
  ShardedModel model;
  torch::optim::AdamW adam{net->parameters(), adamw()};
  optim::FusedStep optimizer;
};

bool same(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return torch::equal(x, y); });
}

constexpr int kSmallSteps = 2;

/// What ranks of which none dies have after each step.
std::vector<Values> values_after_steps() {
  std::vector<Values> after;
  on_seeded_ranks(
      3,
      [&](comm::Communicator group) {
        Small training(group);
        for (int s = 0; s <= kSmallSteps; ++s) {
          if (s > 0) training.step();
          if (group.rank() == 0) after.push_back(training.readable());
          group.barrier();
        }
      },
      /*shared_memory=*/true);
  return after;
}

TEST(OneCopyDeaths, WhereverARankDiesValuesAreThoseOfOneStepOrTorn) {
  const auto after = values_after_steps();
  int torn = 0, whole = 0;
  int64_t kill = 0;
  const auto train = [&](comm::Communicator group) {
    at::set_num_threads(1);
    std::optional<Small> training;
    std::exception_ptr error;
    try {
      training.emplace(group);
      for (int s = 0; s < kSmallSteps; ++s) training->step();
    } catch (const CommError&) {
      error = std::current_exception();
    }
    if (training) {
      const auto values = training->readable();
      ++(values.empty() ? torn : whole);
      const auto is_this = [&](const Values& one) { return same(one, values); };
      EXPECT_TRUE(values.empty() || std::any_of(after.begin(), after.end(), is_this))
          << "rank " << group.rank() << " has mixed values, kill " << kill;
    }
    if (error) std::rethrow_exception(error);
  };
  for (bool dies = true; dies;) {
    ++kill;
    dies = comm::run_thread_world(3, {.kill_rank = 1, .kill_step = kill, .seed = 7, .shared_memory = true}, train)[1] !=
           nullptr;
  }
  EXPECT_GT(torn, 0);
  EXPECT_GT(whole, torn);
}

}  // namespace
}  // namespace muster::parallel::sharded::one_copy_deaths
