#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/recompute_models.h"
#include "graph/region.h"
#include "muster/graph/recompute.h"
#include "parallel/counted_memory.h"

namespace muster {
namespace {

using parallel::CountedMemory;
using testing::RecomputeCase;

/// Bytes of CPU tensors that a step adds.
struct Use {
  int64_t after_forward = 0, peak_of_backward = 0;
};

Use use_of(const RecomputeCase& one, bool recompute) {
  for (const auto& parameter : one.module->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  const auto x = torch::ones(one.batch);
  Use use;
  for (int step = 0; step < 2; ++step) {  // the first step compares operators, which takes memory
    CountedMemory memory;
    at::Tensor loss;
    {
      const auto scope = recompute ? std::make_unique<RecomputeScope>(*one.module, one.options) : nullptr;
      loss = one.forward(*one.module, x).sum();
    }
    use.after_forward = memory.live();
    memory.forget_peak();
    loss.backward();
    use.peak_of_backward = memory.peak();
    EXPECT_LE(memory.live(), 64);  // the loss
  }
  return use;
}

/// `inputs`: bytes of what goes into blocks and of what is saved outside of them, without what the program holds.
void expect_inputs_only(const std::function<RecomputeCase()>& make, int64_t inputs, int64_t blocks) {
  at::set_num_threads(1);
  auto one = make();
  one.options.check = false;
  const auto plain = use_of(one, false), recomputed = use_of(one, true);
  EXPECT_LE(static_cast<double>(recomputed.after_forward), 1.05 * static_cast<double>(inputs));
  // Backward has one block's activations at a time, and as much for itself as without recompute.
  const auto of_one_block = plain.after_forward / blocks, for_itself = plain.peak_of_backward - plain.after_forward;
  EXPECT_LE(recomputed.peak_of_backward, recomputed.after_forward + of_one_block + for_itself);
}

TEST(RecomputeMemory, KeepsTheInputsOfBlocksOnly) {
  constexpr int64_t kFloat = 4;
  {
    SCOPED_TRACE("stack");
    static constexpr int64_t kWidth = 32, kSamples = 256, kDepth = 6;
    // The inputs of all blocks but the first, and of the head, and the head's output.
    expect_inputs_only(
        [] {
          return testing::recompute_case(testing::Stack(kWidth, kDepth).ptr(), {kSamples, kWidth}, {"RecomputeBlock"});
        },
        kFloat * kSamples * (kDepth * kWidth + 3), kDepth);
  }
  {
    SCOPED_TRACE("in place, with dropout and statistics");
    expect_inputs_only(
        [] {
          return testing::recompute_case(testing::ConvNet().ptr(), {64, 3, 16, 16}, {"ConvBlock"});
        },
        kFloat * 64 * (2 * 6 * 16 * 16 + 6 + 3), 3);
  }
  {
    SCOPED_TRACE("one block, called three times");
    expect_inputs_only(
        [] {
          return testing::recompute_case(testing::SharedNet().ptr(), {64, 16, 8}, {"layer"});
        },
        kFloat * 64 * (3 * 16 * 8 + 8 + 3), 3);
  }
}

}  // namespace
}  // namespace muster
