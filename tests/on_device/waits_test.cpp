// From its second step on a program makes the host wait for nothing on its device, under any strategy and whatever it
// does in a step, but for the flag of loss scaling, which is read when the step after it is queued.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/sharded_options.h"
#include "muster/strategy/options.h"
#include "muster/trainer.h"
#include "runtime/counted_waits.h"
#include "runtime/device_course.h"

namespace muster::program_waits {
namespace {

using Batch = torch::data::Example<>;
using testing::kWaitForFlag;
using testing::Waits;
using testing::WaitsBySyncPoint;

constexpr int64_t kFirst = 2, kLast = 6;  // the batches between which waits are counted

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool hooks) : hooks(hooks) {}
  torch::nn::Linear in{register_module("in", torch::nn::Linear(7, 24))},
      middle{register_module("middle", torch::nn::Linear(24, 24))},
      out{register_module("out", torch::nn::Linear(24, 3))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(24))};
  bool hooks;
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = torch::tanh(in(x));
    if (hooks) hidden.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
    return out(torch::relu(middle(norm(hidden)))).to(at::kFloat);
  }
};
TORCH_MODULE(Net);

/// What a program does beside training.
struct Use {
  bool accumulation = false;
  bool batch_norm = false;  ///< synchronised
  bool clipping = false;    ///< and the norm of the gradients
  std::string comm_hook = "none";
  bool hooks = false;
  bool local_sgd = false;
  bool recompute = false;
  std::string text() const {
    return std::string(accumulation ? "accumulation " : "") + (batch_norm ? "batch norm " : "") +
           (clipping ? "clipping " : "") + (hooks ? "hooks " : "") + (local_sgd ? "local SGD " : "") +
           (recompute ? "recompute " : "") + comm_hook;
  }
};

Strategy strategy_of(const std::string& name, const Use& use) {
  if (name == "auto") return "auto";
  if (name == "ddp") {
    DDP options{.comm_hook = use.comm_hook};
    options.power_sgd.start_iteration = 0;
    return options;
  }
  FSDP options{.unit_min_elements = 60};
  if (name == "zero1") options.stage = ShardStage::optimizer;
  if (name == "zero2") options.stage = ShardStage::gradients;
  if (name == "hsdp") options.shard_group_size = 2;
  return options;
}

DataLoader<Batch> points(int64_t count) {
  std::vector<Batch> rows;
  for (int i = 0; i < count; ++i)
    rows.emplace_back(torch::cos(torch::arange(7, torch::kFloat) * (i + 1)), torch::sin(torch::arange(3.0F) + i));
  return DataLoader(rows, {.batch_size = 4});
}

/// Counts between the two batches.
struct Counted : testing::CountedWaits {
  void at(int64_t batch) {
    if (batch == kFirst) begin();
    if (batch == kLast) end();
  }
};

void expect_flags_only(const Counted& counted, int64_t flags) {
  EXPECT_EQ(counted.by_cause, flags > 0 ? Waits({{"event", flags}}) : Waits());
  EXPECT_EQ(counted.by_sync_point, flags > 0 ? Waits({{kWaitForFlag, flags}}) : Waits());
}

Counted waits_of(const std::string& strategy, const char* precision, const Use& use) {
  Accelerator accelerator(
      {.device_backend = testing::simulated_backend(),
       .gradient_accumulation_steps = use.accumulation ? 2 : 1,
       .mixed_precision = Precision::parse(precision),
       .recompute = {.blocks = use.recompute ? std::vector<std::string>{"in|middle|norm"} : std::vector<std::string>()},
       .strategy = strategy_of(strategy, use)});
  torch::manual_seed(3);
  const Net net(use.hooks);
  auto model = accelerator.prepare(net);
  if (use.batch_norm) accelerator.convert_sync_batchnorm(model);
  auto optimizer = accelerator.prepare(torch::optim::AdamW(net->parameters(), 0.01));
  auto batches = accelerator.prepare(points(40 * accelerator.num_processes()));
  std::unique_ptr<LocalSGD> local;
  if (use.local_sgd) local.reset(new LocalSGD(accelerator.local_sgd(model, {.local_sgd_steps = 2})));
  Counted counted;
  std::vector<GradNorm> norms;
  int64_t count = 0;
  for (auto& batch : batches) {
    counted.at(count++);
    const auto window = accelerator.accumulate(model);
    accelerator.backward((model(batch.data) - batch.target).pow(2).mean());
    if (use.clipping) {
      norms.push_back(model.grad_norm());
      norms.push_back(accelerator.clip_grad_norm_(model, 0.05));
    }
    optimizer.step();
    if (local) local->step();
    optimizer.zero_grad();
  }
  if (local) local->finish();
  for (size_t i = 0; i < norms.size(); i += 2) {
    const double asked = norms[i], clipped = norms[i + 1];
    EXPECT_TRUE(asked == clipped || (std::isnan(asked) && std::isnan(clipped))) << asked << ", " << clipped;
  }
  return counted;
}

void expect_no_waits(const std::string& strategy, const Use& use) {
  const WaitsBySyncPoint counting;
  for (const char* precision : {"no", "fp16"}) {
    SCOPED_TRACE(strategy + ", " + precision + ": " + use.text());
    sim::set_seed(1);
    const bool scales = std::string(precision) == "fp16";
    const int64_t steps = use.accumulation ? 2 : 4;
    expect_flags_only(waits_of(strategy, precision, use), scales ? steps : 0);
  }
}

TEST(WaitsOfPrograms, AreNoneOnOneRank) {
  testing::as_device_ranks(1, [] {
    expect_no_waits("auto", {.clipping = true, .hooks = true});
    expect_no_waits("auto", {.accumulation = true, .clipping = true});
  });
}

TEST(WaitsOfPrograms, AreNoneUnderEachStrategy) {
  testing::as_device_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"}) {
      expect_no_waits(strategy, {.clipping = true, .hooks = true});
      expect_no_waits(strategy, {.accumulation = true, .clipping = true});
      expect_no_waits(strategy, {.accumulation = true, .batch_norm = true, .hooks = true});
    }
  });
}

TEST(WaitsOfPrograms, AreNoneWhereActivationsAreMadeAgain) {
  testing::as_device_ranks(1, [] { expect_no_waits("auto", {.clipping = true, .hooks = true, .recompute = true}); });
  testing::as_device_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"})
      expect_no_waits(strategy, {.accumulation = true, .batch_norm = true, .clipping = true, .recompute = true});
  });
}

TEST(WaitsOfPrograms, AreNoneForWhatOnlyReplicatedModelsDo) {
  testing::as_device_ranks(2, [] {
    for (const char* hook : {"bf16", "fp16", "powersgd"})
      expect_no_waits("ddp", {.batch_norm = true, .clipping = true, .comm_hook = hook});
    expect_no_waits("ddp", {.clipping = true, .hooks = true, .local_sgd = true});
  });
}

TEST(WaitsOfPrograms, AreNoneUnderHybridSharding) {
  testing::as_device_ranks(4, [] {
    expect_no_waits("hsdp", {.batch_norm = true, .clipping = true, .hooks = true});
    expect_no_waits("hsdp", {.accumulation = true, .clipping = true});
  });
}

/// Logs all that can be logged in a step.
struct Logging : TrainerModule {
  Net net = register_module("net", Net(true));
  Accuracy accuracy;
  MeanMetric mean;
  Counted counted;
  bool from_first = false;  ///< of the second epoch

  torch::Tensor training_step(Batch& batch, int64_t batch_idx) {
    counted.at(batch_idx + (from_first && current_epoch() > 0 ? kFirst : 0));
    const auto answer = net(batch.data);
    const auto loss = (answer - batch.target).pow(2).mean();
    log("loss", loss, {.on_epoch = true, .on_step = true, .prog_bar = true});
    log("of all", loss, {.on_epoch = true, .on_step = true, .sync_dist = true});
    log("sum of all", loss, {.reduce_fx = "sum", .sync_dist = true});
    log("most of all", loss, {.on_epoch = true, .on_step = true, .reduce_fx = "max", .sync_dist = true});
    for (const double factor : {1.0, 0.3}) log("twice", loss * factor, {.on_epoch = true, .on_step = true});
    accuracy.update(answer, batch.target.argmax(1));
    mean.update(answer, 0.5);
    log("accuracy", accuracy);
    log("mean", mean);
    return loss;
  }
  Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 0.01); }
};

void expect_no_waits_of_a_trainer(const std::string& strategy, const char* precision, int world) {
  SCOPED_TRACE(strategy + ", " + precision);
  sim::set_seed(1);
  const bool scales = std::string(precision) == "16-mixed";
  TrainerOptions options{.accumulate_grad_batches = 2,
                         .device_backend = testing::simulated_backend(),
                         .enable_checkpointing = false,
                         .enable_model_summary = false,
                         .enable_progress_bar = false,
                         .gradient_clip_val = 0.5,
                         .max_epochs = 2,
                         .precision = Precision::parse(precision),
                         .strategy = strategy_of(strategy, {})};
  options.sync_batchnorm = world > 1;
  const auto module = std::make_shared<Logging>();
  module->from_first = !scales;
  Trainer trainer(options);
  const WaitsBySyncPoint counting;
  trainer.fit(module, points(40 * world));
  expect_flags_only(module->counted, scales ? 2 : 0);
}

TEST(WaitsOfPrograms, AreNoneForWhatATrainerLogs) {
  testing::as_device_ranks(1, [] {
    for (const char* precision : {"32-true", "16-mixed"}) expect_no_waits_of_a_trainer("auto", precision, 1);
  });
}

TEST(WaitsOfPrograms, AreNoneForWhatATrainerLogsUnderEachStrategy) {
  testing::as_device_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero1", "zero2", "fsdp"})
      for (const char* precision : {"32-true", "16-mixed"}) expect_no_waits_of_a_trainer(strategy, precision, 2);
  });
}

}  // namespace
}  // namespace muster::program_waits
