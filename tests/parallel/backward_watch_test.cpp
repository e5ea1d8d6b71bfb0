// Every sequence of what a program may do with backwards: gradients are those of one process, whatever came before.
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"

namespace muster::parallel::backward_watch {
namespace {

using namespace muster::parallel::testing;
using at::Tensor;
using comm::Communicator;

constexpr int kRanks = 2;

/// Two layers. `again`: which of them are computed again in backward. `between`: called in backward between them.
struct Layers : torch::nn::Module {
  enum class Recomputes { none, first, both };
  Layers() {
    draw_parameters(*this, 4);
    to(at::kDouble);
  }
  Tensor compute(const Tensor& input, Recomputes again, const std::function<void()>* between = nullptr) {
    const auto x = input.clone().requires_grad_();
    if (again == Recomputes::both) return Again::apply(x, &all_);
    const auto middle = again == Recomputes::first ? Again::apply(x, &first_) : first_(x);
    return second(between ? Calling::apply(middle, between) : middle);
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 5))},
      second{register_module("second", torch::nn::Linear(5, 3))};

 private:
  Part first_ = [this](const Tensor& x) { return torch::tanh(first(x)); },
       all_ = [this](const Tensor& x) { return second(torch::tanh(first(x))); };
};

enum class Action {
  announced,     ///< a backward that the runtime announces
  plain,         ///< one that it does not
  nested,        ///< an announced one with a call inside that brings gradients
  plain_nested,  ///< the same, not announced
  inner,         ///< all gradients come from inside, announced
  plain_inner,   ///< the same, not announced
  local,         ///< without communication
  plain_local,   ///< the same, not announced
  in_scope,      ///< one that is not announced, in the scope of its forward
  retries,       ///< an announced one of calls inside, of which the second throws half way
  throws,        ///< an announced one that throws half way; the program clears the gradients
  throws_early,  ///< an announced one that throws before it reaches the model, then a plain one of an older graph
  plain_throws,  ///< the same, not announced
  inner_throws,  ///< a call inside has thrown, and the program has caught that
  bypasses,      ///< an announced one of a forward outside of every scope, which is refused where it can be seen
  alone,         ///< a reduction without a backward, as for a rank without a loss
};
constexpr int kActions = 16;

const std::function<void()> kThrow = [] { throw std::runtime_error("the program's own"); };

/// A model as one rank has it, and a plain module that gets the batches of all ranks.
class Job {
 public:
  Job(const std::string& strategy, const Communicator& group)
      : rank_(group.rank()), gathers_(strategy == "fsdp"), sgd_(net_.parameters(), 0.01),
        plain_sgd_(plain_.parameters(), 0.01) {
    if (strategy == "ddp")
      model_ = std::make_unique<ReplicatedModel>(
          net_, group, DdpOptions{.bucket_cap_mb = 1e-4, .find_unused_parameters = true, .first_bucket_mb = 1e-4});
    else
      model_ = std::make_unique<ShardedModel>(net_, group,
                                              ShardedOptions{.stage = strategy == "zero1"   ? ShardStage::optimizer
                                                                      : strategy == "zero2" ? ShardStage::gradients
                                                                                            : ShardStage::full,
                                                             .unit_min_elements = 1});
    optimizer_ = std::make_unique<optim::FusedStep>(sgd_, std::vector<optim::FlatParameters*>{model_.get()});
  }

  void act(Action action) {
    using Recomputes = Layers::Recomputes;
    switch (action) {
      case Action::announced: return train(Recomputes::none, /*announces=*/true);
      case Action::plain: return train(Recomputes::none, /*announces=*/false);
      case Action::nested: return train(Recomputes::first, /*announces=*/true);
      case Action::plain_nested: return train(Recomputes::first, /*announces=*/false);
      case Action::inner: return train(Recomputes::both, /*announces=*/true);
      case Action::plain_inner: return train(Recomputes::both, /*announces=*/false);
      case Action::local: return train_locally(/*announces=*/true);
      case Action::plain_local: return train_locally(/*announces=*/false);
      case Action::in_scope: return train_in_scope();
      case Action::retries: return retry_inside();
      case Action::throws: return throw_half_way(/*announces=*/true);
      case Action::throws_early: return throw_before_the_model();
      case Action::plain_throws: return throw_half_way(/*announces=*/false);
      case Action::inner_throws: return lose_an_inner_call();
      case Action::bypasses: return bypass();
      case Action::alone:
        model_->gradient_reductions()->start_reduction();
        model_->gradient_reductions()->finish_reduction();
        return;
    }
  }

  /// A step of both, after which they have equal parameters.
  void step_and_compare(const std::string& what) {
    train(Layers::Recomputes::none, /*announces=*/true);
    optimizer_->step();
    plain_sgd_.step();
    clear();
    const auto wanted = plain_.named_parameters();
    for (const auto& [name, value] : model_->full_state(false))
      EXPECT_EQ(muster::testing::difference(value, wanted[name].detach(), 1e-9, 1e-9), "") << name << what;
  }

 private:
  Tensor batch(int rank) const {
    return torch::randn({3, 4}, generator(100 + 10 * static_cast<uint64_t>(count_ % 7) + static_cast<uint64_t>(rank)))
        .to(at::kDouble);
  }
  Tensor forward(Layers::Recomputes again, const std::function<void()>* between = nullptr) {
    const ForwardScope scope(*model_);
    return loss_of(net_.compute(batch(rank_), again, between));
  }
  void count_gradients(Layers::Recomputes again) {
    for (int rank = 0; rank < kRanks; ++rank) (loss_of(plain_.compute(batch(rank), again)) / kRanks).backward();
  }
  void train(Layers::Recomputes again, bool announces) {
    ++count_;
    const auto loss = forward(again);
    announces ? backward(*model_, loss) : loss.backward();
    count_gradients(again);
  }
  void train_locally(bool announces) {
    model_->set_gradient_sync(false);
    train(Layers::Recomputes::none, announces);
    model_->set_gradient_sync(true);
  }
  void train_in_scope() {
    ++count_;
    const ForwardScope scope(*model_);
    loss_of(net_.compute(batch(rank_), Layers::Recomputes::none)).backward();
    count_gradients(Layers::Recomputes::none);
  }
  void throw_half_way(bool announces) {
    ++count_;
    const auto loss = forward(Layers::Recomputes::none, &kThrow);
    if (announces) model_->before_backward();
    EXPECT_THROW(loss.backward(), std::runtime_error);
    if (announces && count_ % 2 == 0) model_->fail_backward();  // as a runtime does, and as other callers may not
    clear();
  }
  void throw_before_the_model() {
    ++count_;
    const auto loss = forward(Layers::Recomputes::none);
    model_->before_backward();
    EXPECT_THROW(Calling::apply(loss, &kThrow).backward({}, /*retain_graph=*/true), std::runtime_error);
    model_->fail_backward();
    loss.backward();
    count_gradients(Layers::Recomputes::none);
  }
  /// The outer call never reaches the model. What the inner one brought before it threw stays.
  void retry_inside() {
    ++count_;
    const auto first = forward(Layers::Recomputes::none), lost = forward(Layers::Recomputes::none, &kThrow),
               again = forward(Layers::Recomputes::none);
    const std::function<void()> attempt = [&] {
      first.backward();
      EXPECT_THROW(lost.backward(), std::runtime_error);
      again.backward();
    };
    const auto leaf = torch::ones({1}).requires_grad_();
    backward(*model_, Calling::apply(leaf, &attempt).sum());
    count_gradients(Layers::Recomputes::none);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_THROW((loss_of(plain_.compute(batch(rank), Layers::Recomputes::none, &kThrow)) / kRanks).backward(),
                   std::runtime_error);
    count_gradients(Layers::Recomputes::none);
  }
  /// The inner call brings the gradients of one layer and throws before the other; the outer one goes on.
  void lose_an_inner_call() {
    ++count_;
    const auto lost = forward(Layers::Recomputes::none, &kThrow);
    const std::function<void()> lose = [&lost] { EXPECT_THROW(lost.backward(), std::runtime_error); };
    backward(*model_, forward(Layers::Recomputes::none, &lose));
    clear();  // half of the inner gradients have come
  }
  void bypass() {
    if (gathers_) return;  // an error of the forward there
    ++count_;
    const auto loss = loss_of(net_.compute(batch(rank_), Layers::Recomputes::none));
    EXPECT_EQ(muster::testing::thrown_id([&] { backward(*model_, loss); }), "MU151");
    clear();
  }
  void clear() {
    optimizer_->zero_grad();
    plain_sgd_.zero_grad();
  }

  Layers net_, plain_;
  const int rank_;
  const bool gathers_;
  int64_t count_ = 0;  // backwards so far
  torch::optim::SGD sgd_, plain_sgd_;
  std::unique_ptr<ManagedModel> model_;
  std::unique_ptr<optim::FusedStep> optimizer_;
};

TEST(BackwardWatch, EverySequenceOfBackwardsHasTheGradientsOfOneProcess) {
  const int length = std::getenv("MUSTER_TEST_FULL") ? 3 : 2;
  int walks = 1;
  for (int i = 0; i < length; ++i) walks *= kActions;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "fsdp"})
    muster::testing::run_threads(kRanks, /*seed=*/11, [&](const Communicator& group) {
      at::set_num_threads(1);
      Job job(strategy, group);
      for (int walk = 0; walk < walks && !::testing::Test::HasFailure(); ++walk) {
        std::string what = ", " + strategy + ", actions";
        for (int i = 0, rest = walk; i < length; ++i, rest /= kActions) {
          what += " " + std::to_string(rest % kActions);
          job.act(static_cast<Action>(rest % kActions));
        }
        job.step_and_compare(what);
      }
    });
  std::cout << walks << " sequences\n";
}

/// While one thread is in the middle of a backward, another one runs one of its own through the same model.
TEST(BackwardWatch, TwoThreadsInOneBackwardAddTheirGradientsUnderDdp) {
  for (const bool announces : {true, false})
    muster::testing::run_threads(kRanks, /*seed=*/0, [&](const Communicator& group) {
      at::set_num_threads(1);
      Layers net, plain;
      ReplicatedModel model(net, group, {.bucket_cap_mb = 1e-4, .first_bucket_mb = 1e-4});
      const auto batch = [](int rank, int number) {
        return torch::randn({3, 4}, generator(10 * static_cast<uint64_t>(number) + static_cast<uint64_t>(rank)))
            .to(at::kDouble);
      };
      const auto loss = [&](int number, const std::function<void()>* between = nullptr) {
        const ForwardScope scope(model);
        return loss_of(net.compute(batch(group.rank(), number), Layers::Recomputes::none, between));
      };
      for (int step = 0; step < 3; ++step) {
        const auto other = loss(2 * step);
        const std::function<void()> run_other = [&other] { std::thread([&other] { other.backward(); }).join(); };
        const auto own = loss(2 * step + 1, &run_other);
        announces ? backward(model, own) : own.backward();
        for (int rank = 0; rank < kRanks; ++rank)
          for (const int number : {2 * step, 2 * step + 1})
            (loss_of(plain.compute(batch(rank, number), Layers::Recomputes::none)) / kRanks).backward();
        const auto found = gradients(net), wanted = gradients(plain);
        for (size_t p = 0; p < found.size(); ++p)
          EXPECT_EQ(muster::testing::difference(found[p], wanted[p], 1e-12, 1e-12), "") << p << ", step " << step;
        EXPECT_EQ(model.reduction_count(), step + 1) << "one backward is reduced once";
        net.zero_grad();
        plain.zero_grad();
      }
    });
}

}  // namespace
}  // namespace muster::parallel::backward_watch
