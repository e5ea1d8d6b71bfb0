#include "muster/trainer/module.h"

#include <torch/types.h>

#include "core.h"
#include "muster/base/error.h"

namespace muster {

trainer::Core& TrainerModule::core() const {
  if (!core_)
    throw UsageError("MU446",
                     "a TrainerModule was asked for what it has during a run only, such as log(), optimizers() or "
                     "trainer(): call it in a hook or a step, while a Trainer runs the module");
  return *core_;
}

Trainer& TrainerModule::trainer() const { return core().run.trainer; }
int64_t TrainerModule::current_epoch() const { return core().run.progress.epoch; }
int64_t TrainerModule::global_step() const { return core().run.global_step(); }
c10::Device TrainerModule::device() const { return core().run.runtime.device(); }

void TrainerModule::backward(const at::Tensor& loss) { core().run.runtime.backward(loss); }
void TrainerModule::optimizer_step(int64_t, int64_t, ModuleOptimizer& optimizer,
                                   const ModuleOptimizer::Closure& closure) {
  optimizer.step(closure);
}
void TrainerModule::optimizer_zero_grad(int64_t, int64_t, ModuleOptimizer& optimizer) { optimizer.zero_grad(); }
void TrainerModule::configure_gradient_clipping(ModuleOptimizer& optimizer,
                                                const std::optional<GradientClipOptions>& clip) {
  if (clip) clip_gradients(optimizer, *clip);
}
void TrainerModule::lr_scheduler_step(const Scheduler& scheduler, std::optional<double> metric) {
  if (metric) scheduler.step(*metric);
  else scheduler.step();
}

void TrainerModule::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  core().run_log.log(name, value, options);
}
void TrainerModule::log(std::string_view name, double value, const LogOptions& options) {
  core().run_log.log(name, value, options);
}
void TrainerModule::log(std::string_view name, Metric& metric, const LogOptions& options) {
  core().run_log.log(name, metric, options);
}
void TrainerModule::log_dict(const std::vector<std::pair<std::string, at::Tensor>>& values, const LogOptions& options) {
  for (const auto& [name, value] : values) core().run_log.log(name, value, options);
}

void TrainerModule::manual_backward(const at::Tensor& loss) { core().optimization.manual_backward(loss); }
runtime::NoSyncScope TrainerModule::no_sync() { return core().optimization.no_sync(); }
const std::vector<ModuleOptimizer>& TrainerModule::optimizers() const { return core().run.preparation->handles; }
const std::vector<Scheduler>& TrainerModule::lr_schedulers() const { return core().run.preparation->schedulers; }
ModuleOptimizer TrainerModule::optimizer(std::size_t index, std::size_t count) const {
  const auto& all = optimizers();
  if (all.size() != count)
    throw UsageError("MU443", "optimizers<" + std::to_string(count) +
                                  ">() was called, and configure_optimizers returned " + std::to_string(all.size()) +
                                  "; ask for as many");
  return all[index];
}
void TrainerModule::clip_gradients(ModuleOptimizer& optimizer, const GradientClipOptions& options) {
  core().optimization.clip(optimizer, options);
}

void TrainerModule::freeze() {
  for (auto& parameter : parameters()) parameter.set_requires_grad(false);
  eval();
}
void TrainerModule::unfreeze() {
  for (auto& parameter : parameters()) parameter.set_requires_grad(true);
  train();
}

}  // namespace muster
