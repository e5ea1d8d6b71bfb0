#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/processor.h"
#include "muster/accelerator.h"
#include "muster/base/temporary_folder.h"
#include "muster/fabric.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "runtime/rank_placement.h"

namespace muster {
namespace {

using testing::thrown_id;

/// One step of 16-mixed; whether the gradients are finite.
void half_step(Accelerator& accelerator, auto& model, auto& optimizer, float factor) {
  optimizer.zero_grad();
  accelerator.backward(model(torch::ones({2, 4})).sum() * factor);
  optimizer.step();
}

TEST(OptionEffects, TheLossScaleFollowsItsOptions) {
  Accelerator accelerator(
      {.grad_scaler = {.backoff_factor = 0.25, .growth_factor = 3, .growth_interval = 1, .init_scale = 64},
       .mixed_precision = "fp16"});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  half_step(accelerator, model, optimizer, 1);
  EXPECT_EQ(optimizer.scaler_state()->scale, 192);
  half_step(accelerator, model, optimizer, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(optimizer.scaler_state()->scale, 48);

  Accelerator unscaled({.grad_scaler = {.enabled = false}, .mixed_precision = "fp16"});
  torch::nn::Linear other(4, 1);
  auto [plain, sgd] = unscaled.prepare(other, torch::optim::SGD(other->parameters(), 0.1));
  half_step(unscaled, plain, sgd, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(sgd.step_was_skipped());
}

/// LibTorch's choices of kernels are for the whole process; they are as before when it ends.
class ChosenKernels {
 public:
  ~ChosenKernels() {
    context.setDeterministicAlgorithms(deterministic_, warns_);
    context.setBenchmarkCuDNN(benchmark_);
    context.setFloat32MatmulPrecision("highest");
  }
  at::Context& context = at::globalContext();

 private:
  const bool benchmark_ = context.benchmarkCuDNN(), deterministic_ = context.deterministicAlgorithms(),
             warns_ = context.deterministicAlgorithmsWarnOnly();
};

TEST(OptionEffects, OnlyDeterministicKernelsAreUsed) {
  ChosenKernels chosen;
  Accelerator strict({.deterministic = true});
  EXPECT_TRUE(chosen.context.deterministicAlgorithms());
  EXPECT_FALSE(chosen.context.deterministicAlgorithmsWarnOnly());
  Fabric lenient({.deterministic = "warn"});
  EXPECT_TRUE(chosen.context.deterministicAlgorithms());
  EXPECT_TRUE(chosen.context.deterministicAlgorithmsWarnOnly());
}

TEST(OptionEffects, TheFirstOneChoosesKernels) {
  ChosenKernels chosen;
  Accelerator with({.benchmark = true});
  EXPECT_TRUE(chosen.context.benchmarkCuDNN());
  Fabric unsaid;
  EXPECT_TRUE(chosen.context.benchmarkCuDNN()) << "it asks for nothing";
  Fabric without({.deterministic = true});
  EXPECT_FALSE(chosen.context.benchmarkCuDNN()) << "trials would undo it";
}

TEST(OptionEffects, TrialsOfDeterministicKernelsAreMU572) {
  ChosenKernels chosen;
  ::testing::internal::CaptureStderr();
  Fabric both({.benchmark = true, .deterministic = true});
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(chosen.context.benchmarkCuDNN()) << "as asked for";
  EXPECT_TRUE(chosen.context.deterministicAlgorithms());
  EXPECT_NE(said.find("MU572: deterministic and benchmark are both set"), std::string::npos) << said;
}

TEST(OptionEffects, ProductsOfMatricesAreAsPreciseAsAsked) {
  ChosenKernels chosen;
  using at::Float32MatmulPrecision;
  torch::manual_seed(1);
  const auto matrix = torch::randn({256, 256});
  const auto product = matrix.mm(matrix);
  Accelerator half({.matmul_precision = "medium"});
  EXPECT_EQ(chosen.context.float32MatmulPrecision(), Float32MatmulPrecision::MEDIUM);
  if (device::multiplies_bfloat16()) {
    const auto rough = matrix.mm(matrix);
    EXPECT_FALSE(torch::equal(rough, product)) << "this processor multiplies in bfloat16";
    EXPECT_TRUE(torch::allclose(rough, product, 0.05, 0.5));
  }
  Fabric unsaid;
  EXPECT_EQ(chosen.context.float32MatmulPrecision(), Float32MatmulPrecision::MEDIUM) << "it asks for nothing";
  Fabric tf32({.matmul_precision = "high"});
  EXPECT_EQ(chosen.context.float32MatmulPrecision(), Float32MatmulPrecision::HIGH);
  Fabric full({.matmul_precision = "highest"});
  EXPECT_EQ(chosen.context.float32MatmulPrecision(), Float32MatmulPrecision::HIGHEST);
  EXPECT_TRUE(torch::equal(matrix.mm(matrix), product));
}

TEST(OptionEffects, ThreadsStayWhereTheyAreWithoutAGpu) {
  const auto before = device::own_cores();
  Accelerator accelerator({.affinity = true, .cpu = true});
  EXPECT_EQ(device::own_cores(), before);
  EXPECT_EQ(accelerator.plan().find("affinity"), std::string::npos);
}

/// A machine whose devices are near the first two cores.
std::string planted_machine() {
  const auto root = new_temporary_folder("muster-near-test");
  std::filesystem::create_directories(root / "proc/sys/kernel/random");
  std::ofstream(root / "proc/sys/kernel/random/boot_id") << "machine\n";
  return root.string();
}

TEST(OptionEffects, RanksShareTheCoresNearTheirDevices) {
  const auto cores = device::own_cores();
  if (cores.size() < 2) GTEST_SKIP() << "this process may run on one core only";
  testing::expect_processes(2, [&](const comm::Communicator& group) {
    const auto root = planted_machine();
    const device::NearCores near{{cores[0], cores[1]}, ""};
    const auto own = cores[static_cast<size_t>(group.rank())];
    EXPECT_EQ(runtime::keep_near_device(group, {{}, "it is off"}, root),
              "affinity: threads run where the system lets them, since it is off");
    EXPECT_EQ(device::own_cores(), cores);
    EXPECT_EQ(runtime::keep_near_device(group, near, root),
              "affinity: threads run on the cores " + std::to_string(own) + ", near the device");
    EXPECT_EQ(device::own_cores(), device::Cores{own});
    EXPECT_EQ(at::get_num_threads(), 1);
    std::filesystem::remove_all(root);
  });
}

TEST(OptionEffects, TheAcceleratorIsChosen) {
  EXPECT_TRUE(Fabric({.accelerator = "cpu"}).device().is_cpu());
  EXPECT_NE(thrown_id([] { Fabric fabric({.accelerator = "abacus"}); }), "no error");
}

TEST(Launcher, AnotherNumberOfNodesIsRefused) {
  EXPECT_NE(thrown_id([] {
              Fabric fabric({.devices = 1, .num_nodes = 2});
              fabric.launch();
            }),
            "no error");
}

}  // namespace
}  // namespace muster
