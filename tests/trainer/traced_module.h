#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/schedule/schedulers.h"
#include "muster/trainer.h"

namespace muster::testing {

/// Hooks in the order of their calls, as "DEPTH NAME"; M is the module, CB a callback.
struct HookTrace {
  std::vector<std::string> calls = {};
  int depth = 0;
  void add(const std::string& name) { calls.push_back(std::to_string(depth) + " " + name); }
};

/// A call of the module that others may be nested in.
class TracedCall {
 public:
  TracedCall(HookTrace& trace, const std::string& name) : trace_(trace) {
    trace.add("M." + name);
    ++trace.depth;
  }
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;
  ~TracedCall() { --trace_.depth; }

 private:
  HookTrace& trace_;
};

/// A module that records every hook.
struct TracedModule : TrainerModule {
  explicit TracedModule(HookTrace& trace, int64_t train_batches = 2, bool manual = false)
      : trace(trace), train_batches(train_batches) {
    automatic_optimization = !manual;
  }
  HookTrace& trace;
  int64_t train_batches;
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 2));

  [[nodiscard]] TracedCall in(const char* name) { return {trace, name}; }

  torch::Tensor forward(torch::Tensor x) {
    const auto call = in("forward");
    return layer(x);
  }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).square().mean(); }
  torch::Tensor training_step(torch::Tensor batch, int64_t) {
    const auto call = in("training_step");
    auto value = loss(batch);
    if (!automatic_optimization) {
      auto [sgd] = optimizers<1>();
      manual_backward(value);
      sgd.step();
    }
    return value;
  }
  void validation_step(torch::Tensor batch, int64_t) {
    const auto call = in("validation_step");
    loss(batch);
  }
  void test_step(torch::Tensor batch, int64_t) {
    const auto call = in("test_step");
    loss(batch);
  }
  torch::Tensor predict_step(torch::Tensor batch, int64_t) {
    const auto call = in("predict_step");
    return forward(batch);
  }
  Optimizers configure_optimizers() override {
    const auto call = in("configure_optimizers");
    auto sgd = std::make_shared<torch::optim::SGD>(parameters(), 0.1);
    return {sgd, StepLR(*sgd, {.step_size = 1})};
  }
  /// So many batches on each rank.
  auto rows(int64_t batches) {
    return DataLoader([](int64_t i) { return torch::full({4}, static_cast<double>(i)); },
                      batches * trainer().runtime().world_size());
  }
  auto train_dataloader() {
    const auto call = in("train_dataloader");
    return rows(train_batches);
  }
  auto val_dataloader() {
    const auto call = in("val_dataloader");
    return rows(1);
  }
  auto test_dataloader() {
    const auto call = in("test_dataloader");
    return rows(1);
  }
  auto predict_dataloader() {
    const auto call = in("predict_dataloader");
    return rows(1);
  }

  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    trace.add("M.configure_callbacks");
    return {};
  }
  void prepare_data() override { trace.add("M.prepare_data"); }
  void setup(Stage) override { trace.add("M.setup"); }
  void teardown(Stage) override { trace.add("M.teardown"); }
  void configure_model() override { trace.add("M.configure_model"); }
  void on_fit_start() override { trace.add("M.on_fit_start"); }
  void on_fit_end() override { trace.add("M.on_fit_end"); }
  void on_train_start() override { trace.add("M.on_train_start"); }
  void on_train_end() override { trace.add("M.on_train_end"); }
  void on_train_epoch_start() override { trace.add("M.on_train_epoch_start"); }
  void on_train_epoch_end() override { trace.add("M.on_train_epoch_end"); }
  void on_validation_start() override { trace.add("M.on_validation_start"); }
  void on_validation_end() override { trace.add("M.on_validation_end"); }
  void on_validation_epoch_start() override { trace.add("M.on_validation_epoch_start"); }
  void on_validation_epoch_end() override { trace.add("M.on_validation_epoch_end"); }
  void on_validation_model_eval() override {
    const auto call = in("on_validation_model_eval");
    TrainerModule::on_validation_model_eval();
  }
  void on_validation_batch_start(torch::Tensor&, int64_t) { trace.add("M.on_validation_batch_start"); }
  void on_validation_batch_end(const StepOutput&, torch::Tensor&, int64_t) { trace.add("M.on_validation_batch_end"); }
  void on_test_start() override { trace.add("M.on_test_start"); }
  void on_test_end() override { trace.add("M.on_test_end"); }
  void on_test_epoch_start() override { trace.add("M.on_test_epoch_start"); }
  void on_test_epoch_end() override { trace.add("M.on_test_epoch_end"); }
  void on_test_model_eval() override {
    const auto call = in("on_test_model_eval");
    TrainerModule::on_test_model_eval();
  }
  void on_test_batch_start(torch::Tensor&, int64_t) { trace.add("M.on_test_batch_start"); }
  void on_test_batch_end(const StepOutput&, torch::Tensor&, int64_t) { trace.add("M.on_test_batch_end"); }
  void on_predict_start() override { trace.add("M.on_predict_start"); }
  void on_predict_end() override { trace.add("M.on_predict_end"); }
  void on_predict_epoch_start() override { trace.add("M.on_predict_epoch_start"); }
  void on_predict_epoch_end() override { trace.add("M.on_predict_epoch_end"); }
  void on_predict_model_eval() override {
    const auto call = in("on_predict_model_eval");
    TrainerModule::on_predict_model_eval();
  }
  void on_predict_batch_start(torch::Tensor&, int64_t) { trace.add("M.on_predict_batch_start"); }
  void on_predict_batch_end(const StepOutput&, torch::Tensor&, int64_t) { trace.add("M.on_predict_batch_end"); }
  void on_train_batch_start(torch::Tensor&, int64_t) { trace.add("M.on_train_batch_start"); }
  void on_train_batch_end(const StepOutput&, torch::Tensor&, int64_t) { trace.add("M.on_train_batch_end"); }
  void on_before_batch_transfer(torch::Tensor&) { trace.add("M.on_before_batch_transfer"); }
  void transfer_batch_to_device(torch::Tensor&, torch::Device, int64_t) { trace.add("M.transfer_batch_to_device"); }
  void on_after_batch_transfer(torch::Tensor&) { trace.add("M.on_after_batch_transfer"); }
  void on_validation_model_zero_grad() override {
    const auto call = in("on_validation_model_zero_grad");
    TrainerModule::on_validation_model_zero_grad();
  }
  void on_before_zero_grad(ModuleOptimizer&) override { trace.add("M.on_before_zero_grad"); }
  void on_before_backward(const at::Tensor&) override { trace.add("M.on_before_backward"); }
  void backward(const at::Tensor& value) override {
    const auto call = in("backward");
    TrainerModule::backward(value);
  }
  void on_after_backward() override { trace.add("M.on_after_backward"); }
  void on_before_optimizer_step(ModuleOptimizer&) override { trace.add("M.on_before_optimizer_step"); }
  void optimizer_step(int64_t epoch, int64_t batch_idx, ModuleOptimizer& optimizer,
                      const ModuleOptimizer::Closure& closure) override {
    const auto call = in("optimizer_step");
    TrainerModule::optimizer_step(epoch, batch_idx, optimizer, closure);
  }
  void optimizer_zero_grad(int64_t epoch, int64_t batch_idx, ModuleOptimizer& optimizer) override {
    const auto call = in("optimizer_zero_grad");
    TrainerModule::optimizer_zero_grad(epoch, batch_idx, optimizer);
  }
  void configure_gradient_clipping(ModuleOptimizer& optimizer,
                                   const std::optional<GradientClipOptions>& clip) override {
    const auto call = in("configure_gradient_clipping");
    TrainerModule::configure_gradient_clipping(optimizer, clip);
  }
  void lr_scheduler_step(const Scheduler& scheduler, std::optional<double> metric) override {
    const auto call = in("lr_scheduler_step");
    TrainerModule::lr_scheduler_step(scheduler, metric);
  }
  void on_save_checkpoint(State&) override { trace.add("M.on_save_checkpoint"); }
  void on_load_checkpoint(State&) override { trace.add("M.on_load_checkpoint"); }
  void train(bool on = true) override {
    const auto call = in("train");
    torch::nn::Module::train(on);
  }
  void zero_grad(bool set_to_none = true) override {
    const auto call = in("zero_grad");
    torch::nn::Module::zero_grad(set_to_none);
  }
};

/// A callback that records every hook.
struct TracedCallback : Callback {
  explicit TracedCallback(HookTrace& trace) : trace(trace) {}
  HookTrace& trace;
  void add(const char* name) { trace.add(std::string("CB.") + name); }

  State state_dict() const override {
    return in_fit ? (trace.add("CB.state_dict"), State::Map{{"there", true}}) : State();
  }
  void load_state_dict(const State&) override { add("load_state_dict"); }
  void setup(Trainer&, TrainerModule&, Stage) override { add("setup"), in_fit = true; }
  void teardown(Trainer&, TrainerModule&, Stage) override { add("teardown"), in_fit = false; }
  void on_fit_start(Trainer&, TrainerModule&) override { add("on_fit_start"); }
  void on_fit_end(Trainer&, TrainerModule&) override { add("on_fit_end"); }
  void on_sanity_check_start(Trainer&, TrainerModule&) override { add("on_sanity_check_start"); }
  void on_sanity_check_end(Trainer&, TrainerModule&) override { add("on_sanity_check_end"); }
  void on_train_start(Trainer&, TrainerModule&) override { add("on_train_start"); }
  void on_train_end(Trainer&, TrainerModule&) override { add("on_train_end"); }
  void on_train_epoch_start(Trainer&, TrainerModule&) override { add("on_train_epoch_start"); }
  void on_train_epoch_end(Trainer&, TrainerModule&) override { add("on_train_epoch_end"); }
  void on_train_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) override {
    add("on_train_batch_start");
  }
  void on_train_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView& batch, BatchPlace) override {
    add("on_train_batch_end");
    batch.get<torch::Tensor>();
  }
  void on_validation_start(Trainer&, TrainerModule&) override { add("on_validation_start"); }
  void on_validation_end(Trainer&, TrainerModule&) override { add("on_validation_end"); }
  void on_validation_epoch_start(Trainer&, TrainerModule&) override { add("on_validation_epoch_start"); }
  void on_validation_epoch_end(Trainer&, TrainerModule&) override { add("on_validation_epoch_end"); }
  void on_validation_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) override {
    add("on_validation_batch_start");
  }
  void on_validation_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView& batch,
                               BatchPlace) override {
    add("on_validation_batch_end");
    batch.get<torch::Tensor>();
  }
  void on_test_start(Trainer&, TrainerModule&) override { add("on_test_start"); }
  void on_test_end(Trainer&, TrainerModule&) override { add("on_test_end"); }
  void on_test_epoch_start(Trainer&, TrainerModule&) override { add("on_test_epoch_start"); }
  void on_test_epoch_end(Trainer&, TrainerModule&) override { add("on_test_epoch_end"); }
  void on_test_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) override {
    add("on_test_batch_start");
  }
  void on_test_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView& batch, BatchPlace) override {
    add("on_test_batch_end");
    batch.get<torch::Tensor>();
  }
  void on_predict_start(Trainer&, TrainerModule&) override { add("on_predict_start"); }
  void on_predict_end(Trainer&, TrainerModule&) override { add("on_predict_end"); }
  void on_predict_epoch_start(Trainer&, TrainerModule&) override { add("on_predict_epoch_start"); }
  void on_predict_epoch_end(Trainer&, TrainerModule&) override { add("on_predict_epoch_end"); }
  void on_predict_batch_start(Trainer&, TrainerModule&, const BatchView&, BatchPlace) override {
    add("on_predict_batch_start");
  }
  void on_predict_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView& batch, BatchPlace) override {
    add("on_predict_batch_end");
    batch.get<torch::Tensor>();
  }
  void on_before_zero_grad(Trainer&, TrainerModule&, ModuleOptimizer&) override { add("on_before_zero_grad"); }
  void on_before_backward(Trainer&, TrainerModule&, const at::Tensor&) override { add("on_before_backward"); }
  void on_after_backward(Trainer&, TrainerModule&) override { add("on_after_backward"); }
  void on_before_optimizer_step(Trainer&, TrainerModule&, ModuleOptimizer&) override {
    add("on_before_optimizer_step");
  }
  void on_save_checkpoint(Trainer&, TrainerModule&, State&) override { add("on_save_checkpoint"); }
  void on_load_checkpoint(Trainer&, TrainerModule&, State&) override { add("on_load_checkpoint"); }

 private:
  bool in_fit = false;
};

}  // namespace muster::testing
