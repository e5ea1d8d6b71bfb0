#include "on_device/programs.h"

#include <memory>
#include <optional>
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/optim/averaging.h"
#include "muster/parallel/options.h"
#include "muster/parallel/sharded_options.h"
#include "muster/testing/compare.h"
#include "muster/trainer.h"
#include "on_device/test_device.h"

namespace muster::on_device {
namespace {

namespace fs = std::filesystem;
constexpr int kBatches = 4;  // of a rank in an epoch

bool sharded(const Case& one) { return one.strategy != "none" && one.strategy != "ddp"; }

/// Losses overflow at first, so that steps are skipped, and the scale grows again.
constexpr GradScalerOptions kScaler{.backoff_factor = 1.0 / 64, .growth_interval = 2, .init_scale = 1U << 30U};

Strategy strategy_of(const Case& one) {
  if (one.strategy == "none") return "auto";
  if (one.strategy == "ddp") return DDP{.comm_hook = one.use == "hooks" ? "bf16" : "none"};
  FSDP options{.unit_min_elements = 60};
  if (one.strategy == "zero1") options.stage = ShardStage::optimizer;
  if (one.strategy == "zero2") options.stage = ShardStage::gradients;
  if (one.strategy == "hsdp") options.shard_group_size = one.world == 4 ? 2 : 1;
  return options;
}

/// The net of all programs. Alone, an optimizer pads parameters on the CPU only, unless they are multiples of 64.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, bool hooks)
      : in(register_module("in", torch::nn::Linear(8, width))),
        middle(register_module("middle", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, width))), hooks_(hooks) {}
  torch::nn::Linear in, middle, out;
  at::Tensor scale = register_buffer("scale", torch::full({1}, 1.25));
  bool throws = false;

  at::Tensor forward(const at::Tensor& x) {
    auto hidden = torch::tanh(in(x));
    if (hooks_ && hidden.requires_grad())
      hidden.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
    hidden = torch::relu(middle(hidden));
    if (throws) throw std::runtime_error("a bad batch");
    return out(hidden).to(at::kFloat) * scale.to(at::kFloat);
  }
  static at::Tensor loss(const at::Tensor& answer, const at::Tensor& wanted) {
    return (answer.mean(1) - wanted).square().mean();
  }

 private:
  bool hooks_;
};
TORCH_MODULE(Net);

int64_t width_of(const Case& one) { return one.world == 1 ? 64 : 19; }

std::shared_ptr<NetImpl> net_of(const Case& one, uint64_t seed = 3) {
  torch::manual_seed(seed);
  return std::make_shared<NetImpl>(width_of(one), one.use == "hooks");
}

using Batch = torch::data::Example<>;

/// Uneven: the last ranks have a batch less, or one of repeated samples.
DataLoader<Batch> points(const Case& one) {
  const int64_t samples = 2 * kBatches * one.world - (one.use == "uneven" ? 2 : 0);
  const auto point = [](int64_t i) {
    const auto x = torch::sin(torch::arange(8.0F) * static_cast<float>(i + 1));
    return Batch(x, x.sum().cos());
  };
  return DataLoader(point, samples,
                    {.batch_size = 2, .seed = 11, .shuffle = true, .workers = one.use == "plain" ? 2 : 0});
}

/// What a program trains with.
struct Job {
  Job(const Case& one, bool on_cpu, uint64_t seed = 3)
      : accelerator({.cpu = on_cpu,
                     .device_backend = "none",
                     .grad_scaler = kScaler,
                     .gradient_accumulation_steps = one.use == "accumulation" ? 3 : 1,
                     .mixed_precision = Precision::parse(one.precision),
                     .recompute = {.blocks = one.use == "recompute" && !on_cpu ? std::vector<std::string>{"in|middle"}
                                                                               : std::vector<std::string>()},
                     .strategy = strategy_of(one)}),
        net(net_of(one, seed)), model(accelerator.prepare(net)), optimizer(optimizer_of(one)),
        batches(accelerator.prepare(points(one))) {
    EXPECT_EQ(accelerator.device(),
              on_cpu ? at::Device(at::kCPU) : testing::test_device(accelerator.local_process_index()));
  }

  Optimizer optimizer_of(const Case& one) {
    if (one.use == "plain" || one.use == "resume")
      return accelerator.prepare(torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)));
    return accelerator.prepare(torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  }
  void step(const Batch& batch, std::optional<double> clip = {}) {
    accelerator.backward(NetImpl::loss(model(batch.data), batch.target));
    if (clip) accelerator.clip_grad_norm_(model, *clip);
    optimizer.step();
    optimizer.zero_grad();
  }
  Weights weights() { return weights_of(accelerator, model); }
  template <class R, class M>
  static Weights weights_of(R& runtime, const M& model) {
    Weights all;
    runtime.summon_full_params(model, [&] {
      for (const auto& entry : model->named_parameters())
        all.emplace_back(entry.key(), entry.value().detach().cpu().clone());
    });
    return all;
  }

  Accelerator accelerator;
  std::shared_ptr<NetImpl> net;
  Model<NetImpl> model;
  Optimizer optimizer;
  DataLoader<Batch> batches;
};

Weights accumulate(Job& job) {
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto& batch : job.batches) {
      const auto window = job.accelerator.accumulate(job.model);
      job.step(batch, 0.5);
    }
  return job.weights();
}

Weights uneven(Job& job) {
  job.accelerator.join_uneven_inputs(
      [&] {
        for (auto& batch : job.batches) job.step(batch);
      },
      {.even_batches = false});
  return job.weights();
}

Weights local_sgd(Job& job) {
  auto local = job.accelerator.local_sgd(job.model, {.local_sgd_steps = 2});
  for (auto& batch : job.batches) {
    job.step(batch);
    local.step();
  }
  local.finish();
  return job.weights();
}

/// What went on after the save, and the same from the checkpoint.
Weights resume(const Case& one, bool on_cpu, const fs::path& folder) {
  Weights uninterrupted;
  {
    Job job(one, on_cpu);
    int steps = 0;
    for (auto& batch : job.batches) {
      job.step(batch);
      if (++steps == 2)
        job.accelerator.save_state(folder, {.asynchronous = one.world != 2, .durability = Durability::none});
    }
    job.accelerator.wait_for_save();
    uninterrupted = job.weights();
  }
  Job job(one, on_cpu, /*seed=*/4);
  job.accelerator.load_state(folder);
  int steps = 0;
  for (auto& batch : job.batches) {
    job.step(batch);
    ++steps;
  }
  EXPECT_EQ(steps, kBatches - 2);
  auto resumed = job.weights();
  for (size_t i = 0; i < resumed.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(resumed[i].second, uninterrupted[i].second), "")
        << resumed[i].first << " after resuming, " << one.text();
  return resumed;
}

/// A batch fails in the middle of a forward on every rank; the program goes on.
Weights after_exception(Job& job) {
  int failures = 0;
  for (int epoch = 0; epoch < 2; ++epoch) try {
      for (auto& batch : job.batches) {
        job.net->throws = epoch == 0 && job.batches.num_yielded() == 2;
        job.step(batch);
      }
    } catch (const std::runtime_error&) {
      ++failures;
      job.optimizer.zero_grad();
    }
  EXPECT_EQ(failures, 1);
  return job.weights();
}

Weights averaged(Job& job) {
  AveragedModel average(job.model, {.decay = 0.75});
  for (auto& batch : job.batches) {
    job.step(batch);
    average.update();
  }
  Weights all;
  average.use([&] { all = job.weights(); });
  return all;
}

struct Trained : TrainerModule {
  explicit Trained(const Case& one) : net(register_module("net", Net(net_of(one)))) {}
  Net net;
  at::Tensor training_step(Batch& batch, int64_t) { return NetImpl::loss(net(batch.data), batch.target); }
  Optimizers configure_optimizers() override { return torch::optim::AdamW(parameters(), 0.01); }
};

Weights by_trainer(const Case& one, bool on_cpu) {
  auto module = std::make_shared<Trained>(one);
  Trainer trainer({.accelerator = on_cpu ? "cpu" : "auto",
                   .accumulate_grad_batches = 2,
                   .device_backend = "none",
                   .enable_checkpointing = false,
                   .enable_model_summary = false,
                   .enable_progress_bar = false,
                   .grad_scaler = kScaler,
                   .gradient_clip_val = 0.5,
                   .max_epochs = 2,
                   .precision = Precision::parse(one.precision),
                   .strategy = strategy_of(one)});
  trainer.fit(module, points(one));
  return Job::weights_of(trainer.runtime(), trainer.model());
}

}  // namespace

std::string why_not(const Case& one) {
  if (one.strategy == "none" && one.world > 1) return "none: several ranks have a strategy";
  if (one.strategy != "none" && one.world == 1) return one.strategy + ": one rank trains without a strategy";
  const bool few = (one.use == "clipping" || one.use == "resume") && one.precision.starts_with("32");
  if (one.world == 4 && (one.strategy != "hsdp" || !few)) return "four ranks: a few of hsdp, which only they shard";
  if (one.use == "local SGD" && (sharded(one) || one.world == 1))
    return "local SGD: of replicated models on several ranks (MU159)";
  return {};
}

Weights run(const Case& one, bool on_cpu, const fs::path& folder) {
  if (one.use == "trainer") return by_trainer(one, on_cpu);
  if (one.use == "resume") return resume(one, on_cpu, folder);
  Job job(one, on_cpu);
  if (one.use == "accumulation") return accumulate(job);
  if (one.use == "uneven") return uneven(job);
  if (one.use == "local SGD") return local_sgd(job);
  if (one.use == "exception") return after_exception(job);
  if (one.use == "averaging") return averaged(job);
  for (auto& batch : job.batches) job.step(batch, one.use == "clipping" ? std::optional(0.05) : std::nullopt);
  return job.weights();
}

}  // namespace muster::on_device
