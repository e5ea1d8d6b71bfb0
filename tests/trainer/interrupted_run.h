#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "muster/checkpoint/checkpoint.h"
#include "muster/data/loader.h"
#include "muster/schedule/schedulers.h"
#include "muster/trainer.h"

// A run of two epochs that everything can interrupt: dropout, a shuffled loader, a schedule, metrics of steps and
// epochs, validation within epochs, callbacks that save and that stop. What it leaves behind can be compared.

namespace muster::testing {

/// A folder of a test, in memory where that can be had: these runs save hundreds of checkpoints.
class QuickFolder {
 public:
  QuickFolder() {
    std::error_code ignored;
    const std::filesystem::path memory = "/dev/shm";
    const auto where = std::filesystem::is_directory(memory, ignored) ? memory : std::filesystem::temp_directory_path();
    auto text = (where / "muster-test-XXXXXX").string();
    path_ = ::mkdtemp(text.data());
  }
  QuickFolder(const QuickFolder&) = delete;
  QuickFolder& operator=(const QuickFolder&) = delete;
  ~QuickFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Every `step`-th place, or all of them in the thorough run of all tests.
inline int64_t stride(int64_t step) { return std::getenv("MUSTER_TEST_FULL") ? 1 : step; }

/// Counts hooks, and acts at one of them.
struct HookCount {
  int64_t calls = 0, act_at = -1;  ///< act_at: the index of a call; -1: none
  std::function<void()> act = {};
  std::map<std::string, int64_t> of_loop = {};  ///< by name, of hooks that run once per batch, epoch or validation

  void add(const std::string& name, bool in_loop = true) {
    if (in_loop) ++of_loop[name];
    if (calls++ == act_at && act) act();
  }
};

struct InterruptedModule : TrainerModule {
  explicit InterruptedModule(HookCount& count) : count(&count) {}
  HookCount* count;
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(3, 2));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));

  torch::Tensor training_step(torch::Tensor& batch, int64_t) {
    count->add("M.training_step", false);
    const auto loss = dropout(layer(batch)).square().mean();
    log("loss", loss, {.on_epoch = true, .on_step = true});
    return loss;
  }
  void validation_step(torch::Tensor& batch, int64_t) {
    count->add("M.validation_step", false);
    log("v", std::max<double>(5 - static_cast<double>(global_step()) / 2, 3));  // 4, 3, 3, 3
    log("noise", layer(batch).mean() + torch::rand({}));
  }
  void on_train_batch_end(const StepOutput&, torch::Tensor&, int64_t) { count->add("M.on_train_batch_end", false); }
  void on_train_epoch_start() override { count->add("M.on_train_epoch_start", false); }
  void on_train_epoch_end() override { count->add("M.on_train_epoch_end", false); }
  void on_validation_end() override { count->add("M.on_validation_end", false); }
  void on_before_optimizer_step(ModuleOptimizer&) override { count->add("M.on_before_optimizer_step", false); }
  Optimizers configure_optimizers() override {
    auto adam = std::make_shared<torch::optim::AdamW>(parameters(), 0.05);
    return {adam, StepLR(*adam, {.gamma = 0.5, .step_size = 1})};
  }
  static auto rows(int64_t count, bool shuffle) {
    return DataLoader(
        [](int64_t i) {
          return torch::tensor({static_cast<float>(i), 1.0F, -0.5F * static_cast<float>(i)}) / 8;
        },
        count, {.batch_size = 2, .seed = 9, .shuffle = shuffle});
  }
  auto train_dataloader() { return rows(8 * trainer().runtime().world_size(), true); }
  auto val_dataloader() { return rows(4 * trainer().runtime().world_size(), false); }
};

/// A callback whose state is what it has counted.
struct InterruptingCallback : Callback {
  explicit InterruptingCallback(HookCount& count) : count(&count) {}
  HookCount* count;

  State state_dict() const override {
    State state = State::Map{};
    for (const auto& [name, calls] : count->of_loop) state.set(name, calls);
    return state;
  }
  void load_state_dict(const State& state) override {
    count->of_loop.clear();
    for (const auto& [name, calls] : state.map()) count->of_loop[name] = calls.integer();
  }
  void once(const char* name) const { count->add(name, false); }
  void setup(Trainer&, TrainerModule&, Stage) override { once("setup"); }
  void teardown(Trainer&, TrainerModule&, Stage) override { once("teardown"); }
  void on_fit_start(Trainer&, TrainerModule&) override { once("on_fit_start"); }
  void on_fit_end(Trainer&, TrainerModule&) override { once("on_fit_end"); }
  void on_train_start(Trainer&, TrainerModule&) override { once("on_train_start"); }
  void on_train_end(Trainer&, TrainerModule&) override { once("on_train_end"); }
  void on_train_epoch_start(Trainer&, TrainerModule&) override { count->add("on_train_epoch_start"); }
  void on_train_epoch_end(Trainer&, TrainerModule&) override { count->add("on_train_epoch_end"); }
  void on_train_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) override {
    count->add("on_train_batch_start");
  }
  void on_train_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) override {
    count->add("on_train_batch_end");
  }
  void on_validation_start(Trainer& trainer, TrainerModule&) override {
    count->add("on_validation_start", !trainer.sanity_checking());
  }
  void on_validation_end(Trainer& trainer, TrainerModule&) override {
    count->add("on_validation_end", !trainer.sanity_checking());
  }
  void on_validation_epoch_start(Trainer& trainer, TrainerModule&) override {
    count->add("on_validation_epoch_start", !trainer.sanity_checking());
  }
  void on_validation_epoch_end(Trainer& trainer, TrainerModule&) override {
    count->add("on_validation_epoch_end", !trainer.sanity_checking());
  }
  void on_validation_batch_start(Trainer& trainer, TrainerModule&, const BatchView&, BatchPlace) override {
    count->add("on_validation_batch_start", !trainer.sanity_checking());
  }
  void on_validation_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                               BatchPlace) override {
    count->add("on_validation_batch_end", !trainer.sanity_checking());
  }
  void on_before_zero_grad(Trainer&, TrainerModule&, ModuleOptimizer&) override { count->add("on_before_zero_grad"); }
  void on_before_backward(Trainer&, TrainerModule&, const at::Tensor&) override { count->add("on_before_backward"); }
  void on_after_backward(Trainer&, TrainerModule&) override { count->add("on_after_backward"); }
  void on_before_optimizer_step(Trainer&, TrainerModule&, ModuleOptimizer&) override {
    count->add("on_before_optimizer_step");
  }
  void on_save_checkpoint(Trainer&, TrainerModule&, State&) override { once("on_save_checkpoint"); }
};

/// What a run leaves behind.
struct RunResult {
  int64_t calls = 0;
  std::map<std::string, int64_t> counts = {};
  int64_t epochs = 0, global_step = 0;
  std::map<std::string, State> files = {};  ///< what every checkpoint holds, by its path in the folder
  Metrics metrics = {};
  std::string stopped = {};
  State weights = {};
};

/// Without the name of the folder, which differs from run to run.
inline State without_folder(const State& state, const std::string& folder) {
  if (state.kind() == State::Kind::text) {
    auto text = state.text();
    if (const auto at = text.find(folder); at != text.npos) text.erase(at, folder.size());
    return text;
  }
  if (state.kind() == State::Kind::list) {
    State::List list;
    for (const auto& one : state.list()) list.push_back(without_folder(one, folder));
    return list;
  }
  if (state.kind() != State::Kind::map) return state;
  State::Map map;
  for (const auto& [name, one] : state.map()) {
    auto key = name;
    if (const auto at = key.find(folder); at != key.npos) key.erase(at, folder.size());
    map.emplace_back(key, without_folder(one, folder));
  }
  return map;
}

inline std::map<std::string, State> checkpoints_in(const std::filesystem::path& folder) {
  std::map<std::string, State> files;
  for (const char* part : {"best", "steps"}) {
    if (!std::filesystem::exists(folder / part)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder / part))
      files[std::string(part) + "/" + entry.path().filename().string()] =
          clone(without_folder(Checkpoint(entry.path()).shared(), folder.string()));
  }
  return files;
}

/// How the runs are made.
struct InterruptedRunOptions {
  int accumulate = 1;
  bool asynchronous = false;
  Strategy strategy = "auto";
};

/// Runs fit() in this folder, from the checkpoint that `ckpt_path` names; throws what ends it.
inline RunResult run_interruptible(const std::filesystem::path& folder, HookCount& count, const std::string& ckpt_path,
                                   const InterruptedRunOptions& how = {}) {
  torch::manual_seed(3);
  const auto module = std::make_shared<InterruptedModule>(count);
  const auto stop = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v", .patience = 2});
  const auto steps = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
      .asynchronous = how.asynchronous, .dirpath = folder / "steps", .every_n_train_steps = 1, .filename = "{step}"});
  const auto best = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.asynchronous = how.asynchronous,
                                                                             .dirpath = folder / "best",
                                                                             .filename = "{epoch}-{step}-{v:.1f}",
                                                                             .monitor = "v",
                                                                             .save_last = true,
                                                                             .save_top_k = 2});
  Trainer trainer({.accumulate_grad_batches = how.accumulate,
                   .callbacks = {std::make_shared<InterruptingCallback>(count), stop, steps, best},
                   .default_root_dir = folder,
                   .max_epochs = 9,
                   .strategy = how.strategy,
                   .val_check_interval = 0.5});
  trainer.fit(module, {.ckpt_path = ckpt_path});
  RunResult result{.calls = count.calls,
                   .counts = count.of_loop,
                   .epochs = trainer.current_epoch(),
                   .global_step = trainer.global_step(),
                   .metrics = trainer.callback_metrics(),
                   .stopped = stop->stopping_reason()};
  trainer.runtime().barrier();
  result.files = checkpoints_in(folder);
  trainer.runtime().barrier();  // before anybody removes the folder
  State::List weights;
  trainer.runtime().summon_full_params(trainer.model(), [&] {
    for (const auto& parameter : trainer.model().parameters()) weights.emplace_back(parameter.detach().clone());
  });
  result.weights = std::move(weights);
  return result;
}

/// What differs between two results; empty: nothing.
inline std::string difference(const RunResult& a, const RunResult& b) {
  if (!identical(a.weights, b.weights)) return "weights";
  if (a.epochs != b.epochs || a.global_step != b.global_step) return "epochs or steps";
  for (const auto& [name, calls] : a.counts)
    if (!b.counts.contains(name) || b.counts.at(name) != calls) return "calls of " + name;
  for (const auto& [name, value] : a.metrics)
    if (!b.metrics.contains(name) || b.metrics.at(name) != value) return "metric " + name;
  if (a.metrics.size() != b.metrics.size()) return "metrics";
  if (a.stopped != b.stopped) return "the reason for stopping: " + a.stopped + " and " + b.stopped;
  for (const auto& [name, state] : a.files) {
    if (!b.files.contains(name)) return "missing " + name;
    for (const auto& [entry, value] : state.map())
      if (!b.files.at(name).find(entry) || !identical(value, b.files.at(name).at(entry))) return entry + " in " + name;
  }
  for (const auto& [name, _] : b.files)
    if (!a.files.contains(name)) return "too much: " + name;
  return {};
}

}  // namespace muster::testing
