#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/device_world.h"
#include "muster/parallel/detail/replicated_model.h"
#include "muster/parallel/detail/sharded_model.h"
#include "muster/testing/compare.h"
#include "parallel/sharded_models.h"

namespace muster::parallel {
namespace {

struct LayersImpl : torch::nn::Module {
  torch::nn::Linear one{register_module("one", torch::nn::Linear(10, 37))},
      two{register_module("two", torch::nn::Linear(37, 37))}, three{register_module("three", torch::nn::Linear(37, 3))};
  torch::nn::LayerNorm norm{register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({37})))};
  at::Tensor forward(const at::Tensor& x) { return three(norm(torch::gelu(two(torch::gelu(one(x)))))); }
};
TORCH_MODULE(Layers);

/// How a model is managed.
struct Managed {
  std::string name = "ddp";  ///< or "zero1", "zero2", "fsdp"
  double bucket_mb = 25;
  std::string param_dtype = {};
  bool hybrid = false;
  int kept_over = 0;  ///< reshard_after_forward
  std::string comm_hook = "none";
};

std::unique_ptr<ManagedModel> manage(torch::nn::Module& module, const comm::Communicator& group, const Managed& how) {
  if (how.name == "ddp")
    return std::make_unique<ReplicatedModel>(
        module, group,
        DdpOptions{.bucket_cap_mb = how.bucket_mb, .comm_hook = how.comm_hook, .first_bucket_mb = how.bucket_mb});
  ShardedOptions options{.unit_min_elements = 60};
  options.stage = how.name == "zero1"   ? ShardStage::optimizer
                  : how.name == "zero2" ? ShardStage::gradients
                                        : ShardStage::full;
  if (!how.param_dtype.empty()) options.param_dtype = at::kBFloat16;
  if (how.kept_over > 0) options.reshard_after_forward = how.kept_over;
  if (!how.hybrid) return std::make_unique<ShardedModel>(module, group, options);
  auto [shards, replicas] = sharded::two_by_two(group);
  return std::make_unique<ShardedModel>(module, shards, replicas, options);
}

void step(ManagedModel& model, const std::vector<at::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  model.gradient_power_sum(parameters, 2);
  model.scale_gradients(parameters, 0.5);
  model.begin_update();
  for (const auto& parameter : parameters)
    if (const auto* local = model.find(parameter); local && model.has_gradient(parameter) && local->value.numel() > 0)
      at::Tensor(local->value).sub_(local->gradient, 0.1);
  model.end_update(parameters);
  for (const auto& parameter : parameters) model.zero_grad(parameter, true);
}

/// What a rank has after some steps.
std::vector<at::Tensor> train(const comm::Communicator& group, at::Device device, const Managed& how) {
  static std::mutex one_generator;
  auto net = [] {
    const std::lock_guard lock(one_generator);
    torch::manual_seed(3);
    return Layers();
  }();
  net->to(device);
  auto model = manage(*net, group, how);
  const auto parameters = net->parameters();
  for (int i = 0; i < 4; ++i) {
    auto x = torch::sin(torch::arange(60) * 0.37 + i * 1.3 + group.rank() * 0.71).view({6, 10}).to(device);
    if (!how.param_dtype.empty()) x = x.to(at::kBFloat16);
    model->enter_forward();
    const auto loss = net->forward(x).to(at::kFloat).square().mean();
    model->leave_forward();
    model->before_backward();
    loss.backward();
    model->after_backward();
    step(*model, parameters);
  }
  std::vector<at::Tensor> all;
  for (const auto& [name, value] : model->full_state(false)) all.push_back(value.cpu());
  return all;
}

void expect_bits_of_cpu(int size, const Managed& how, int seeds = 6) {
  SCOPED_TRACE(how.name + (how.hybrid ? " hybrid" : ""));
  sim::install();
  std::vector<std::vector<at::Tensor>> expected(static_cast<size_t>(size)), got = expected;
  const auto threads = comm::run_thread_world(size, {}, [&](const comm::Communicator& group) {
    at::set_num_threads(1);
    expected[static_cast<size_t>(group.rank())] = train(group, at::kCPU, how);
  });
  ASSERT_EQ(comm::errors_of(threads), "");
  for (int seed = 0; seed < seeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    const auto errors = comm::run_device_world(size, {.device_backend = true, .side_stream = seed % 2 == 1},
                                               [&](const comm::Communicator& group, at::Device device) {
                                                 at::set_num_threads(1);
                                                 got[static_cast<size_t>(group.rank())] = train(group, device, how);
                                               });
    ASSERT_EQ(errors, "") << "seed " << seed;
    for (size_t r = 0; r < got.size(); ++r)
      for (size_t i = 0; i < got[r].size(); ++i)
        ASSERT_EQ(muster::testing::difference_in_bits(got[r][i], expected[r][i]), "")
            << "seed " << seed << ", rank " << r << ", tensor " << i;
  }
}

TEST(DeviceBackend, ReplicatedTrainingHasTheBitsOfTheCpu) {
  expect_bits_of_cpu(2, {});
  expect_bits_of_cpu(3, {.bucket_mb = 0.001});
  expect_bits_of_cpu(2, {.bucket_mb = 0.001, .comm_hook = "bf16"});
}
TEST(DeviceBackend, ShardedTrainingHasTheBitsOfTheCpu) {
  for (const char* name : {"zero1", "zero2", "fsdp"}) expect_bits_of_cpu(2, {.name = name});
  expect_bits_of_cpu(3, {.name = "fsdp"});
}
TEST(DeviceBackend, ShardedTrainingInBfloat16HasTheBitsOfTheCpu) {
  for (const char* name : {"zero1", "zero2", "fsdp"}) expect_bits_of_cpu(2, {.name = name, .param_dtype = "bf16"});
}
TEST(DeviceBackend, HybridShardingEndsWithTheBitsOfTheCpu) {
  expect_bits_of_cpu(4, {.name = "fsdp", .hybrid = true}, 10);
  expect_bits_of_cpu(4, {.name = "fsdp", .kept_over = 2}, 10);
}

}  // namespace
}  // namespace muster::parallel
