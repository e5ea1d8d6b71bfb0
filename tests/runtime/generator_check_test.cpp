#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/random_state.h"
#include "runtime/ranks.h"

namespace muster::runtime {
namespace {

enum class Seeding { alike, per_rank_by_us, per_rank_by_libtorch, synced };

struct Program {
  const char* name;
  bool draws;
  Seeding seeding;
  const char* strategy;
  int lines;  // that speak of it, on rank 0
};

int mentions(const std::string& text) {
  int times = 0;
  for (auto at = text.find("MU070"); at != std::string::npos; at = text.find("MU070", at + 1)) ++times;
  return times;
}

/// Four steps of a model with noise on its inputs; what plan() says in the end.
std::string train(const Program& program) {
  torch::manual_seed(1);
  Accelerator accelerator(
      {.strategy = program.strategy, .synced_generators = {.cpu = program.seeding == Seeding::synced}});
  torch::nn::Linear net(8, 3);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  if (program.seeding == Seeding::per_rank_by_us) accelerator.set_seed(1, /*per_rank=*/true);
  if (program.seeding == Seeding::per_rank_by_libtorch) torch::manual_seed(1 + accelerator.process_index());
  for (int step = 0; step < 4; ++step) {
    accelerator.backward(model(program.draws ? torch::randn({5, 8}) : torch::ones({5, 8})).square().sum());
    const auto before = at::detail::getDefaultCPUGenerator().get_state();
    optimizer.step();
    EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before)) << "looking must not draw";
    optimizer.zero_grad();
  }
  return accelerator.plan();
}

TEST(GeneratorCheck, AreSpokenOfOnceWhereStepsDraw) {
  for (const Program& program :
       {Program{"alike", true, Seeding::alike, "ddp", 1}, Program{"alike and sharded", true, Seeding::alike, "fsdp", 1},
        Program{"nothing drawn", false, Seeding::alike, "ddp", 0},
        Program{"set_seed", true, Seeding::per_rank_by_us, "ddp", 0},
        Program{"manual_seed", true, Seeding::per_rank_by_libtorch, "ddp", 0},
        Program{"synced", true, Seeding::synced, "ddp", 0}}) {
    SCOPED_TRACE(program.name);
    testing::as_ranks(
        2,
        [&] {
          ::testing::internal::CaptureStderr();
          const auto plan = train(program);
          const auto said = ::testing::internal::GetCapturedStderr();
          EXPECT_EQ(mentions(said), read_cluster_environment().rank == 0 ? program.lines : 0)
              << program.name << ": " << said;
          EXPECT_EQ(mentions(plan), program.lines) << program.name << ": " << plan;
        },
        program.name);
  }
}

TEST(GeneratorCheck, AreNotWatchedAlone) { EXPECT_EQ(mentions(train({"alone", true, Seeding::alike, "auto", 0})), 0); }

}  // namespace
}  // namespace muster::runtime
