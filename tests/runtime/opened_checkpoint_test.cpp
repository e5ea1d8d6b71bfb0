#include "muster/runtime/opened_checkpoint.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/parallel/managed_model.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"
#include "runtime/saved_net.h"
#include "runtime/temporary_folder.h"

namespace muster::saving {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using testing::thrown_id;

struct Counter {
  int64_t steps = 0;
  State state_dict() const { return steps; }
  void load_state_dict(const State& state) { steps = state.integer(); }
};

/// A job whose parts are made one after the other, as a program does that loads in phases.
struct Job {
  explicit Job(const AcceleratorOptions& options) : accelerator(options) {}
  void make_model() { model = accelerator.prepare(net); }
  void make_optimizer() {
    sgd = std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::tie(optimizer, scheduler) = accelerator.prepare(*sgd, StepLR(*sgd, {.gamma = 0.5, .step_size = 2}));
  }
  void make_progress() {
    loader = accelerator.prepare(DataLoader(Numbers(), {.batch_size = 2}));
    accelerator.register_for_checkpointing(counter);
  }
  void step(const at::Tensor& batch) {
    const auto x = batch.to(torch::kFloat).unsqueeze(1).expand({-1, 3}) / 24;
    auto window = accelerator.accumulate(model);
    accelerator.backward((model(x) + torch::rand({1})).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
    scheduler.step();
    ++counter.steps;
  }
  /// Trains until so many steps of all were made, and saves after the third.
  void train_to(int64_t steps, const fs::path& folder = {}) {
    while (counter.steps < steps)
      for (auto& batch : loader) {
        step(batch);
        if (counter.steps == 3 && !folder.empty()) accelerator.save_state(folder);
        if (counter.steps == steps) break;
      }
  }
  std::vector<at::Tensor> weights() {
    std::vector<at::Tensor> all;
    for (auto& [name, value] : model.prepared()->managed->full_state(false)) all.push_back(value.detach().clone());
    return all;
  }

  Accelerator accelerator;
  SavedNet net;
  Counter counter;
  std::shared_ptr<torch::optim::SGD> sgd;
  Model<SavedNetImpl> model;
  Optimizer optimizer;
  Scheduler scheduler;
  DataLoader<at::Tensor> loader;
};

void expect_continued(const AcceleratorOptions& options) {
  const Accelerator keeps_the_group;
  const auto shared = testing::shared_folder(keeps_the_group.group());
  const auto folder = shared.path() / "saved";
  std::vector<at::Tensor> expected;
  {
    torch::manual_seed(5);
    Job job(options);
    job.make_model(), job.make_optimizer(), job.make_progress();
    job.train_to(8, folder);
    expected = job.weights();
  }
  torch::manual_seed(6);
  Job job(options);
  job.make_model();
  OpenedCheckpoint checkpoint(job.accelerator, folder);
  checkpoint.load_models();
  job.make_optimizer();
  checkpoint.load_optimizers();
  job.make_progress();
  checkpoint.load_progress();
  EXPECT_EQ(job.counter.steps, 3);
  EXPECT_EQ(job.loader.num_yielded(), 3);
  job.train_to(8);
  EXPECT_TRUE(equal(job.weights(), expected));
}

TEST(OpenedCheckpoint, LoadsInPhasesAsLoadStateDoesAtOnce) { expect_continued({.gradient_accumulation_steps = 2}); }

TEST(OpenedCheckpoint, LoadsInPhasesOnRanks) {
  for (const char* strategy : {"ddp", "fsdp"})
    testing::as_ranks(
        2, [&] { expect_continued({.strategy = strategy}); }, strategy);
}

TEST(OpenedCheckpoint, APhaseThatFailsLeavesTheOthers) {
  const TemporaryFolder folder;
  Job saved({});
  saved.make_model(), saved.make_optimizer(), saved.make_progress();
  saved.train_to(3, folder.path() / "saved");
  Job job({});
  job.make_model();
  OpenedCheckpoint checkpoint(job.accelerator, folder.path() / "saved");
  EXPECT_EQ(checkpoint.folder(), folder.path() / "saved");
  checkpoint.load_models();
  EXPECT_EQ(thrown_id([&] { checkpoint.load_optimizers(); }), "MU240");
  EXPECT_EQ(thrown_id([&] { checkpoint.load_progress(); }), "MU240");
  EXPECT_TRUE(equal(job.weights(), saved.weights()));
  job.make_optimizer();
  checkpoint.load_optimizers();
  EXPECT_EQ(job.sgd->param_groups()[0].options().get_lr(), saved.sgd->param_groups()[0].options().get_lr());
}

TEST(OpenedCheckpoint, CallsHooksOnceAndShowsWhatTheyAdded) {
  const TemporaryFolder folder;
  Job job({.project = {.automatic_checkpoint_naming = true, .directory = folder.path().string()}});
  job.make_model();
  job.accelerator.register_save_state_pre_hook([](State& state, const fs::path&) { state.set("loop", State("here")); });
  job.accelerator.save_state();
  const auto newest = job.accelerator.save_state();
  int calls = 0;
  job.accelerator.register_load_state_pre_hook([&](State& state, const fs::path&) {
    ++calls;
    state.set("seen", State(true));
  });
  OpenedCheckpoint checkpoint(job.accelerator);
  EXPECT_EQ(checkpoint.folder(), newest);
  checkpoint.load_models();
  checkpoint.load_optimizers();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(checkpoint.shared().at("loop").text(), "here");
  EXPECT_TRUE(checkpoint.shared().at("seen").boolean());
}

TEST(OpenedCheckpoint, AnEntryIsReadWithoutTheWeights) {
  const TemporaryFolder folder;
  const auto saved = folder.path() / "saved";
  Accelerator accelerator;
  torch::nn::Linear large(1024, 1024);  // its last weights are far from the file's head
  auto model = accelerator.prepare(large);
  accelerator.register_save_state_pre_hook([](State& state, const fs::path&) { state.set("loop", State("here")); });
  accelerator.save_state(saved);
  {
    std::fstream file(saved / "rank-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(file.peek());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
  }
  EXPECT_EQ(checkpoint_entry(accelerator, saved, "loop").value().text(), "here");
  EXPECT_EQ(checkpoint_entry(accelerator, saved, "nothing"), std::nullopt);
  EXPECT_EQ(thrown_id([&] { OpenedCheckpoint(accelerator, saved); }), "MU213");
  EXPECT_EQ(thrown_id([&] { checkpoint_entry(accelerator, folder.path() / "none", "loop"); }), "MU210");
}

}  // namespace
}  // namespace muster::saving
