#include <gtest/gtest.h>

#include "data/batch_order.h"
#include "datasets.h"

namespace muster::data {
namespace {

using testing::Batches;
using testing::Stepped;

// Whatever the batch a rank begins at, a sampler that only steps gives what it would have given without the
// interruption.
TEST(SampledOrder, ResumesAtEveryBatch) {
  for (const bool even : {true, false})
    for (const bool split : {true, false})
      for (int rank = 0; rank < 3; ++rank) {
        const SplitPlan plan(
            {.batch_size = 6, .even = even, .rank = rank, .size = 32, .split_batches = split, .world_size = 3});
        Batches whole;
        SampledOrder order(plan, std::make_shared<Stepped>(32), 32, 4, 0);
        for (int64_t b = 0; b < plan.batches(); ++b) order.fill(b, whole.emplace_back());
        for (int64_t from = 0; from < plan.batches(); ++from) {
          SampledOrder resumed(plan, std::make_shared<Stepped>(32), 32, 4, from);
          for (int64_t b = from; b < plan.batches(); ++b) {
            std::vector<int64_t> indices;
            resumed.fill(b, indices);
            EXPECT_EQ(indices, whole[b]) << "rank " << rank << " from " << from << " batch " << b;
          }
        }
      }
}

class Seeking : public Stepped {
 public:
  using Stepped::Stepped;
  void seek(int64_t position) override {
    asked = position;
    Stepped::seek(position);
  }
  int64_t asked = -1;
};

TEST(SampledOrder, AsksASamplerToSeek) {
  const auto data = testing::numbers(32);
  const auto sampler = std::make_shared<Seeking>(32);
  DataLoader loader(data, sampler, {.batch_size = 4});
  loader.seek(5);
  EXPECT_EQ(testing::run(loader).size(), 3u);
  EXPECT_EQ(sampler->asked, 20);
}

TEST(SampledOrder, RefusesIndicesOutsideTheDataSet) {
  const auto data = testing::numbers(3);
  for (const int workers : {0, 2}) {
    const DataLoader loader(data, SequentialSampler(5), {.batch_size = 2, .workers = workers});
    try {
      testing::run(loader);
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& e) {
      EXPECT_EQ(e.id(), "MU109");
    }
  }
}

}  // namespace
}  // namespace muster::data
