#include "muster/parallel/local_sgd.h"

#include <gtest/gtest.h>

#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "parallel/replicated_model.h"
#include "parallel/replicated_models.h"
#include "parallel/sharded_model.h"

namespace muster::parallel {
namespace {

using namespace muster::parallel::testing;

TEST(LocalSgd, AveragesParametersEveryFewSteps) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3);
    std::shared_ptr<Net> alone[2] = {make_net(Kind::mlp, at::kDouble, 3), make_net(Kind::mlp, at::kDouble, 3)};
    ReplicatedModel replicated(*net, group);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    optim::FusedStep optimizer(sgd, {&replicated});
    LocalSGD local(*net, replicated, group, {.local_sgd_steps = 3});
    for (int step = 0; step < 7; ++step) {
      backward(replicated, loss_of(run(replicated, *net, draw_part(*net, 4, step, group.rank(), at::kDouble))));
      optimizer.step();
      optimizer.zero_grad();
      local.step();
      if (step == 6) local.finish();
      torch::NoGradGuard no_grad;
      for (int rank = 0; rank < 2; ++rank) {
        torch::AutoGradMode on(true);
        alone[rank]->zero_grad();
        loss_of(alone[rank]->forward(draw_part(*net, 4, step, rank, at::kDouble))).backward();
        torch::NoGradGuard off;
        for (auto& parameter : alone[rank]->parameters()) parameter -= 0.1 * parameter.grad();
      }
      if (step % 3 == 2 || step == 6)
        for (size_t i = 0; i < net->parameters().size(); ++i) {
          const auto mean = (alone[0]->parameters()[i] + alone[1]->parameters()[i]) / 2;
          for (auto& one : alone) one->parameters()[i].copy_(mean);
        }
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_EQ(muster::testing::difference(net->parameters()[i].detach(),
                                              alone[group.rank()]->parameters()[i].detach(), 1e-12, 1e-13),
                  "")
            << "step " << step;
      EXPECT_EQ(local.pending(), step == 6 ? 0 : (step + 1) % 3);
    }
  });
}

TEST(LocalSgd, GradientsAreCommunicatedAgainAfterwards) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    {
      LocalSGD local(*net, replicated, group);
      EXPECT_FALSE(replicated.gradient_sync());
    }
    EXPECT_TRUE(replicated.gradient_sync());
    LocalSGD off(*net, replicated, group, {.enabled = false});
    EXPECT_TRUE(replicated.gradient_sync());
    off.step();
    EXPECT_EQ(off.pending(), 0);
  });
}

TEST(LocalSgd, RefusesWhatCannotWork) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const auto net = make_net(Kind::mlp, at::kDouble, 3), sharded = make_net(Kind::mlp, at::kDouble, 3);
    ReplicatedModel replicated(*net, group);
    EXPECT_EQ(muster::testing::thrown_id([&] { LocalSGD(*net, replicated, group, {.local_sgd_steps = 0}); }), "MU159");
    ShardedModel model(*sharded, group);
    EXPECT_EQ(muster::testing::thrown_id([&] { LocalSGD(*sharded, model, group); }), "MU159");
  });
}

}  // namespace
}  // namespace muster::parallel
