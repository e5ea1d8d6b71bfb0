#include "parallel/sharded/unit_gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/world.h"

namespace muster::parallel {
namespace {

using torch::Tensor;

const comm::OperationLabel kLabel{.text = "test", .source = comm::Source::library};

/// Two parameters of 100 and 70 elements in the gradients of a unit, on this rank.
struct GradientFixture {
  ShardGroups groups;
  ShardLayout layout;
  BufferPool buffers;
  UnitGradients gradients;

  GradientFixture(comm::Communicator group, bool keeps_full, at::ScalarType reduce = at::kFloat, double divisor = 0,
                  comm::Communicator replicas = {})
      : groups{group, replicas}, layout({100, 70}, group.size()),
        gradients(layout, {100, 70}, groups,
                  {at::kFloat, reduce, keeps_full, divisor > 0 ? divisor : group.size() * replicas.size()}, buffers) {}

  void reduce() {
    gradients.start_reduction(kLabel);
    gradients.wait();
  }
  /// All ranks' parts of parameter i, one after another.
  Tensor whole(size_t i) {
    auto parts = groups.shards.all_gatherv(gradients.part(i));
    return torch::cat(parts).narrow(0, 0, i == 0 ? 100 : 70);
  }
};

void on_ranks(int world, const std::function<void(comm::Communicator)>& body) {
  muster::testing::run_threads(world, 5, body);
}

Tensor ramp(int64_t numel, int rank) { return torch::arange(numel).to(at::kFloat) + 1000 * rank; }

TEST(UnitGradients, SumsAddAndCount) {
  for (const bool keeps_full : {false, true})
    on_ranks(2, [&](comm::Communicator group) {
      GradientFixture unit(group, keeps_full);
      auto& gradients = unit.gradients;
      const auto mean = ramp(100, 0) / 2 + ramp(100, 1) / 2;
      gradients.take(0, ramp(100, group.rank()));
      EXPECT_TRUE(gradients.has_unsharded_grad(0));
      unit.reduce();
      EXPECT_TRUE(gradients.has_sharded_grad(0) && !gradients.has_sharded_grad(1) && !gradients.has_unsharded_grads());
      EXPECT_TRUE(torch::equal(unit.whole(0), mean));
      gradients.take(0, ramp(100, group.rank()));  // adds to what is there, twice
      gradients.take(0, ramp(100, group.rank()));
      if (group.rank() == 1) gradients.take(1, torch::ones({70}));
      unit.reduce();
      EXPECT_TRUE(gradients.has_sharded_grad(1)) << "one rank's gradient counts on all";
      EXPECT_TRUE(torch::equal(unit.whole(0), mean + (mean + mean)));
      EXPECT_TRUE(torch::equal(unit.whole(1), torch::full({70}, 0.5f)));
      gradients.take(1, torch::ones({70}));
      unit.reduce();
      EXPECT_TRUE(torch::equal(unit.whole(0), 3 * mean)) << "none came";
      EXPECT_TRUE(torch::equal(unit.whole(1), torch::full({70}, 1.5f)));
      gradients.zero(0, /*set_to_none=*/true);
      gradients.zero(1, /*set_to_none=*/false);
      gradients.take(0, ramp(100, group.rank()));
      unit.reduce();
      EXPECT_TRUE(torch::equal(unit.whole(0), mean));
      EXPECT_TRUE(gradients.has_sharded_grad(1));
      EXPECT_EQ(unit.whole(1).abs().max().item<float>(), 0);
      unit.buffers.trim();
      EXPECT_EQ(unit.buffers.bytes(), 0);
    });
}

TEST(UnitGradients, DividesTheSumOfMicroBatches) {
  for (const bool keeps_full : {false, true})
    for (const bool said : {false, true})
      on_ranks(3, [&](comm::Communicator group) {
        GradientFixture unit(group, keeps_full);
        const auto sum = [](int rank) { return ((ramp(100, rank) * 0.1f + ramp(100, rank)) + 7.f) * (1.0 / 3); };
        unit.gradients.take(0, ramp(100, group.rank()) * 0.1f, /*last=*/false);
        unit.gradients.take(0, ramp(100, group.rank()), /*last=*/false);
        unit.gradients.take(0, torch::full({100}, 7.f), /*last=*/said);
        unit.reduce();
        EXPECT_TRUE(torch::equal(unit.whole(0), (sum(0) + sum(1)) + sum(2)));
      });
}

TEST(UnitGradients, PaddingStaysZero) {
  for (const bool keeps_full : {false, true})
    on_ranks(2, [&](comm::Communicator group) {
      GradientFixture unit(group, keeps_full);
      auto junk = unit.buffers.allocate(unit.layout.world() * (unit.layout.shard_numel() + 2), at::kFloat);
      junk.fill_(NAN);
      unit.buffers.release(std::move(junk));
      unit.gradients.take(1, torch::ones({70}));
      unit.reduce();
      EXPECT_EQ(unit.gradients.part(0).abs().sum().item<float>(), 0);
      auto all = torch::cat(group.all_gatherv(unit.gradients.part(1)));
      EXPECT_EQ(all.sum().item<float>(), 70);
    });
}

TEST(UnitGradients, ScalingReachesWhatWaitsAndWhatCounts) {
  for (const bool keeps_full : {false, true})
    on_ranks(2, [&](comm::Communicator group) {
      GradientFixture unit(group, keeps_full);
      unit.gradients.take(0, torch::ones({100}));
      unit.reduce();
      unit.gradients.take(0, torch::ones({100}));
      unit.gradients.scale(0, 3);
      unit.reduce();
      EXPECT_TRUE(torch::equal(unit.whole(0), torch::full({100}, 6.f)));
    });
}

TEST(UnitGradients, CancelForgetsWhatWaitsAndWhatIsUnderWay) {
  for (const bool keeps_full : {false, true})
    on_ranks(2, [&](comm::Communicator group) {
      GradientFixture unit(group, keeps_full);
      unit.gradients.take(0, torch::ones({100}));
      unit.reduce();
      unit.gradients.take(1, torch::ones({70}));
      unit.gradients.start_reduction(kLabel);
      EXPECT_TRUE(unit.gradients.in_flight());
      unit.gradients.cancel();
      EXPECT_FALSE(unit.gradients.has_sharded_grad(1));
      unit.gradients.take(1, torch::ones({70}));
      unit.gradients.cancel();
      EXPECT_FALSE(unit.gradients.has_unsharded_grads());
      EXPECT_TRUE(torch::equal(unit.whole(0), torch::ones({100})));
      unit.gradients.zero(0, true);
      unit.gradients.take(1, torch::ones({70}));
      unit.reduce();
      EXPECT_TRUE(torch::equal(unit.whole(1), torch::ones({70})));
    });
}

TEST(UnitGradients, ReducesInAnotherDtype) {
  for (const bool keeps_full : {false, true})
    on_ranks(2, [&](comm::Communicator group) {
      GradientFixture unit(group, keeps_full, at::kBFloat16);
      const auto mine = ramp(100, group.rank()) / 7;
      unit.gradients.take(0, mine);
      unit.reduce();
      const auto low = [](int rank) { return (ramp(100, rank) / 7).to(at::kBFloat16) / 2; };
      EXPECT_TRUE(torch::equal(unit.whole(0), (low(0) + low(1)).to(at::kFloat)));
      unit.gradients.take(0, mine);
      unit.reduce();
      EXPECT_TRUE(torch::equal(unit.whole(0), 2 * (low(0) + low(1)).to(at::kFloat)));
    });
}

TEST(UnitGradients, Float16DividesBeforeAndAfterSoThatNeitherEndIsLost) {
  on_ranks(4, [&](comm::Communicator group) {
    ShardSettings settings;
    EXPECT_EQ(settings.divisor_before(at::kHalf, 4), 2);
    EXPECT_EQ(settings.divisor_before(at::kHalf, 16), 4);
    EXPECT_EQ(settings.divisor_before(at::kHalf, 6), 4);
    EXPECT_EQ(settings.divisor_before(at::kFloat, 4), 4);
    GradientFixture unit(group, false, at::kHalf, settings.divisor_before(at::kHalf, 4));
    unit.gradients.take(0, torch::full({100}, 30000.f));  // the sum of four would be infinite
    unit.gradients.take(1, torch::full({70}, 1.2e-7f));   // a fourth of it would be zero
    unit.reduce();
    EXPECT_NEAR(unit.whole(0)[99].item<float>(), 30000, 16);
    EXPECT_GT(unit.whole(1)[69].item<float>(), 0.5e-7f);
  });
}

TEST(UnitGradients, ReplicasAddTheirParts) {
  on_ranks(4, [&](comm::Communicator group) {
    const std::vector<std::vector<int>> rows{{0, 1}, {2, 3}}, columns{{0, 2}, {1, 3}};
    comm::Communicator shards, replicas;
    for (int k = 0; k < 2; ++k) {
      auto row = group.subgroup(rows[k]), column = group.subgroup(columns[k]);
      if (group.rank() / 2 == k) shards = row;
      if (group.rank() % 2 == k) replicas = column;
    }
    GradientFixture unit(shards, false, at::kFloat, 0, replicas);
    if (group.rank() == 3) unit.gradients.take(1, torch::full({70}, 8.f));
    unit.gradients.take(0, torch::full({100}, float(group.rank())));
    unit.reduce();
    EXPECT_TRUE(torch::equal(unit.whole(0), torch::full({100}, 1.5f)));
    EXPECT_TRUE(unit.gradients.has_sharded_grad(1));
    EXPECT_TRUE(torch::equal(unit.whole(1), torch::full({70}, 2.f)));
  });
}

}  // namespace
}  // namespace muster::parallel
