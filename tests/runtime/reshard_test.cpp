#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"
#include "runtime/prepared_optimizer.h"
#include "runtime/ranks.h"
#include "runtime/saved_tensors.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

struct LongNetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(61, 500))},
      middle{register_module("middle", torch::nn::Linear(500, 301))},
      out{register_module("out", torch::nn::Linear(301, 7))};
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(middle(torch::tanh(in(x))))); }
};
TORCH_MODULE(LongNet);

constexpr double kParameters = 61 * 500 + 500 + 500 * 301 + 301 + 301 * 7 + 7;

/// One leg of a checkpoint's way: who takes it up, from where, and under which name it is saved again.
struct Leg {
  const char* name;
  int world;
  Strategy strategy;
};

const std::vector<Leg>& legs() {
  static const std::vector<Leg> all{
      {"four", 4, FSDP{.unit_min_elements = 20000}},     {"two", 2, "fsdp"},   {"three", 3, "zero1"},
      {"one", 1, FSDP{.unit_names = {"middle", "out"}}}, {"copies", 2, "ddp"}, {"four again", 4, "zero2"}};
  return all;
}

/// What a rank reads of a checkpoint to take up its part of model and optimizer.
template <class Net, class Adam>
double bytes_of_part(const fs::path& folder, const Net& model, const Adam& optimizer) {
  const Checkpoint checkpoint(folder, {.check = CheckpointCheck::layout});
  const auto shared = checkpoint.shared();
  const runtime::TensorReader reader(&checkpoint);
  runtime::prepare_weights(*model.prepared(), shared.at("models").list().at(0).at("weights"), /*strict=*/true, reader);
  optimizer.prepared()->prepare_load(shared.at("optimizers").list().at(0), reader);
  return static_cast<double>(checkpoint.bytes_read());
}

void run_leg(const Leg& leg, const fs::path& from, const fs::path& to) {
  torch::manual_seed(from.empty() ? 3 : 4);
  Accelerator accelerator({.strategy = leg.strategy});
  LongNet net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
  if (from.empty()) {
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(torch::randn({3, 61})).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  } else {
    const auto whole = 3 * sizeof(float) * kParameters;
    const bool cut = model.prepared()->managed->sharded() && !Checkpoint(from).sharded().empty();
    if (cut) {
      EXPECT_NEAR(bytes_of_part(from, model, optimizer), whole / leg.world, whole / leg.world / 100);
    }
    accelerator.load_state(from);
  }
  accelerator.save_state(to);
}

TEST(Resharding, KeepsEveryBitOverWorldsStagesAndWrappings) {
  const testing::InheritedFolder own;
  const auto& folder = own.path();
  fs::path from;
  for (const auto& leg : legs()) {
    testing::as_ranks(
        leg.world, [&] { run_leg(leg, from, folder / leg.name); }, leg.name);
    from = folder / leg.name;
    ASSERT_FALSE(HasFailure()) << leg.name;
  }
  const Checkpoint first(folder / legs().front().name), last(folder / legs().back().name);
  ASSERT_EQ(first.sharded().size(), 3 * 6U);
  ASSERT_EQ(last.sharded().size(), first.sharded().size());
  for (const auto& tensor : first.sharded())
    EXPECT_EQ(testing::difference_in_bits(last.read(tensor.name, 0, tensor.numel()),
                                          first.read(tensor.name, 0, tensor.numel())),
              "")
        << tensor.name;
}

}  // namespace
}  // namespace muster
