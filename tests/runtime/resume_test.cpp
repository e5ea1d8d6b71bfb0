#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/fabric.h"
#include "muster/optim/averaging.h"
#include "muster/optim/optimizer_state.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/compare.h"
#include "muster/testing/thrown.h"
#include "muster/tree/state.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSamples = 38, kEpochs = 2;

using Sample = std::tuple<at::Tensor, at::Tensor>;  // values and number

/// Random augmentation by LibTorch's generator, which here belongs to the sample.
Sample augmented(int64_t i) {
  const auto values = torch::sin(torch::arange(6, torch::kFloat) * (0.3 * static_cast<double>(i) + 1));
  return {values + 0.1 * torch::rand(6), torch::tensor(i)};
}

struct ResumeMap {
  Sample get(int64_t i) const { return augmented(i); }
  int64_t size() const { return kSamples; }
};

struct ResumeStream {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return at < kSamples ? std::optional(at++) : std::nullopt; }
  std::string state() const { return std::to_string(at); }
  void load_state(const std::string& saved) { at = std::stoll(saved); }
  Sample transform(const int64_t& i) const { return augmented(i); }
};

struct ResumeNetImpl : torch::nn::Module {
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 8))},
      out{register_module("out", torch::nn::Linear(8, 1))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(8))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.3))};
  at::Tensor forward(at::Tensor x) { return out(dropout(torch::relu(norm(in(x))))); }
};
TORCH_MODULE(ResumeNet);

/// A metric that each rank has its own of.
struct RunningSum {
  double sum = 0;
  State state_dict() const { return State::Map{{"sum", sum}}; }
  void load_state_dict(const State& state) { sum = state.at("sum").number(); }
};

struct ResumeJob {
  std::string data = "map";
  int workers = 0;
  bool asynchronous = false;
};

/// What a run shows of itself: a line per batch, and everything at its end.
struct Course {
  std::vector<std::string> batches;
  State end;
};

auto loader_of(const ResumeJob& job) {
  const DataLoaderOptions options{.batch_size = 4,
                                  .dispatch_batches = job.data == "dispatched",
                                  .shuffle = job.data == "map",
                                  .workers = job.workers};
  return job.data == "map" ? DataLoader(ResumeMap(), options) : DataLoader(ResumeStream(), options);
}

fs::path folder_of(const fs::path& root, size_t batch) { return root / ("batch_" + std::to_string(batch)); }

/// Trains from the start and saves after every batch, or goes on after batch `from`.
Course train(const ResumeJob& job, const fs::path& root, std::optional<size_t> from = {}) {
  torch::manual_seed(from ? 1000 + *from : 7);  // a resumed program knows nothing of the former one's numbers
  Accelerator accelerator({.grad_scaler = {.growth_interval = 2, .init_scale = 1024},
                           .gradient_accumulation_steps = 3,
                           .mixed_precision = "fp16"});
  ResumeNet net;
  torch::optim::AdamW adam(net->parameters(), 0.01);
  CosineAnnealingLR schedule(adam, {.T_max = 9});
  auto [model, optimizer, scheduler, batches] = accelerator.prepare(net, adam, schedule, loader_of(job));
  AveragedModel average(*net);
  RunningSum metric;
  accelerator.register_for_checkpointing(average, metric);
  Course course;
  size_t batch = 0;
  if (from) {
    accelerator.load_state(folder_of(root, *from));
    batch = *from + 1;
  }
  for (const auto epoch : accelerator.epochs(kEpochs)) {
    for (auto& [values, number] : batches) {
      auto window = accelerator.accumulate(model);
      auto loss = torch::mse_loss(model(values), torch::cos(number.to(torch::kFloat)).view({-1, 1}));
      if (epoch == 0 && batch == 4) loss = loss * 1e30;  // overflows: the step at the end of this window is skipped
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (accelerator.sync_gradients() && !optimizer.step_was_skipped()) average.update();
      metric.sum += std::min(loss.item<double>(), 10.0);
      course.batches.push_back(std::to_string(epoch) + ": " + c10::str(number.flatten()) + " " +
                               std::to_string(std::bit_cast<uint32_t>(loss.item<float>())) + " " +
                               std::to_string(std::bit_cast<uint64_t>(metric.sum)) +
                               (optimizer.step_was_skipped() ? " skipped" : ""));
      if (!from)
        accelerator.save_state(folder_of(root, batch),
                               {.asynchronous = job.asynchronous, .durability = Durability::none});
      ++batch;
    }
  }
  accelerator.wait_for_save();
  net->eval();
  const auto answer = model(torch::ones({2, 6}));  // a forward, from which on all ranks have rank 0's statistics
  State::Map weights;
  for (const auto& entry : net->named_parameters()) weights.emplace_back(entry.key(), entry.value().detach().clone());
  for (const auto& entry : net->named_buffers()) weights.emplace_back(entry.key(), entry.value().clone());
  course.end = State::Map{{"weights", std::move(weights)},
                          {"optimizer", state_dict(adam)},
                          {"rate", adam.param_groups()[0].options().get_lr()},
                          {"average", average.state_dict()},
                          {"answer", answer.detach()},
                          {"scale", optimizer.scaler_state()->scale},
                          {"random", torch::rand(1)}};
  return course;
}

std::vector<std::string> rest_of(const Course& course, size_t after) {
  return {course.batches.begin() + static_cast<std::ptrdiff_t>(after) + 1, course.batches.end()};
}

void expect_equal_courses(const ResumeJob& job, int resumed_workers) {
  const Accelerator first;  // the ranks' meeting stays open while runtimes come and go
  const auto root = testing::shared_folder(first.group());
  const auto whole = train(job, root.path());
  const auto skipped = std::count_if(whole.batches.begin(), whole.batches.end(),
                                     [](const auto& line) { return line.ends_with("skipped"); });
  EXPECT_GT(skipped, 0);
  auto other = job;
  other.workers = resumed_workers;
  ASSERT_GT(whole.batches.size(), 8U);
  for (size_t after = 0; after < whole.batches.size(); ++after) {
    SCOPED_TRACE(job.data + ", stopped after batch " + std::to_string(after));
    const auto resumed = train(other, root.path(), after);
    EXPECT_EQ(resumed.batches, rest_of(whole, after));
    EXPECT_TRUE(identical(resumed.end, whole.end));
    if (::testing::Test::HasFailure()) return;
  }
}

class Resume : public ::testing::TestWithParam<std::tuple<int, std::string, std::pair<int, int>>> {};

TEST_P(Resume, EqualsTheUninterruptedRunToTheBit) {
  const auto& [ranks, data, workers] = GetParam();
  const ResumeJob job{.data = data, .workers = workers.first, .asynchronous = workers.first == 1};
  testing::as_ranks(ranks, [&, to = workers.second] { expect_equal_courses(job, to); });
}

std::string name_of(const ::testing::TestParamInfo<Resume::ParamType>& info) {
  const auto& [ranks, data, workers] = info.param;
  return std::to_string(ranks) + "ranks_" + data + "_" + std::to_string(workers.first) + "to" +
         std::to_string(workers.second) + "workers";
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Resume,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values("map", "stream", "dispatched"),
                                            ::testing::Values(std::pair(0, 3), std::pair(1, 0), std::pair(3, 1))),
                         name_of);

struct Count {
  int64_t value = 1;
  State state_dict() const { return value; }
  void load_state_dict(const State& state) { value = state.integer(); }
};

void expect_newest() {
  Accelerator first;  // the ranks' meeting stays open while runtimes come and go
  EXPECT_EQ(testing::thrown_id([&] { resume(first); }), "MU244");
  const auto root = testing::shared_folder(first.group());
  Accelerator accelerator({.project = {.automatic_checkpoint_naming = true, .directory = root.path().string()}});
  Count count;
  accelerator.register_for_checkpointing(count);
  EXPECT_FALSE(resume(accelerator));
  EXPECT_EQ(count.value, 1) << "without a checkpoint something was loaded";
  accelerator.save_state();
  count.value = 2;
  EXPECT_EQ(accelerator.save_state({}, {.asynchronous = true}), root.path() / "checkpoints");
  const auto newest = root.path() / "checkpoints" / "checkpoint_1";
  count.value = 3;
  EXPECT_TRUE(resume(accelerator));
  EXPECT_EQ(count.value, 2);
  EXPECT_EQ(accelerator.wait_for_save(), newest);
  if (accelerator.is_main_process()) fs::remove(newest / "manifest.json");
  EXPECT_TRUE(resume(accelerator));
  EXPECT_EQ(count.value, 1) << "one that is not whole was loaded";
  Fabric fabric({.project = {.automatic_checkpoint_naming = true, .directory = root.path().string()}});
  Count other{.value = 5};
  fabric.register_for_checkpointing(other);
  EXPECT_TRUE(resume(fabric));
  EXPECT_EQ(other.value, 1);
}

void expect_resumed_shards(const char* dtype, ShardStage stage) {
  const Accelerator first;
  const auto folder = testing::shared_folder(first.group());
  const auto trained = [&](bool resumes) {
    Accelerator accelerator({.strategy = FSDP{.param_dtype = dtype, .stage = stage}});
    torch::manual_seed(resumes ? 2 : 1);
    torch::nn::Sequential net(torch::nn::Linear(5, 70), torch::nn::Linear(70, 3));
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-2));
    for (int step = resumes ? 2 : 0; step < 4; ++step) {
      if (step == 2 && !resumes) accelerator.save_state(folder.path() / "state");
      if (step == 2 && resumes) accelerator.load_state(folder.path() / "state");
      const auto x =
          torch::sin(torch::arange(20, torch::kFloat) * (step + 1 + accelerator.process_index())).view({4, 5});
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    return model.prepared()->managed->full_state(false);
  };
  const auto whole = trained(false), resumed = trained(true);
  ASSERT_EQ(whole.size(), resumed.size());
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(testing::difference_in_bits(resumed[i].second, whole[i].second), "") << whole[i].first;
}

TEST(Resume, OfShardsThatAreUsedInAnotherDtypeGivesTheSameBits) {
  testing::as_ranks(2, [] {
    for (const char* dtype : {"bf16", "f16"})
      for (const auto stage : {ShardStage::optimizer, ShardStage::gradients, ShardStage::full})
        expect_resumed_shards(dtype, stage);
  });
}

TEST(ResumeNewest, LoadsTheNewestWholeCheckpointOrSaysThatThereIsNone) {
  for (const int ranks : {1, 2}) testing::as_ranks(ranks, expect_newest);
}

}  // namespace
}  // namespace muster
