#include "muster/runtime/options.h"

#include "muster/base/error.h"
#include "muster/runtime/detail/presets.h"

namespace muster {

Devices::Devices(std::initializer_list<int> indices) : text_() {
  for (int index : indices) text_ += (text_.empty() ? "" : ",") + std::to_string(index);
  // One index is still a list: "3," and not the count 3.
  if (indices.size() == 1) text_ += ",";
}

namespace runtime {

namespace {

GradientAccumulationOptions accumulation_of(const AcceleratorOptions& options) {
  auto chosen = options.gradient_accumulation;
  if (options.gradient_accumulation_steps == 1) return chosen;
  if (chosen.num_steps != 1 && chosen.num_steps != options.gradient_accumulation_steps)
    throw ConfigError("MU181", "gradient_accumulation_steps is " + std::to_string(options.gradient_accumulation_steps) +
                                   " and gradient_accumulation.num_steps " + std::to_string(chosen.num_steps) +
                                   "; give one of them");
  chosen.num_steps = options.gradient_accumulation_steps;
  return chosen;
}

}  // namespace

RuntimeOptions accelerate(const AcceleratorOptions& options) {
  return {.accelerator = options.cpu ? "cpu" : "auto",
          .callbacks = options.callbacks,
          .deterministic = options.deterministic,
          .devices = options.devices == Devices() ? std::nullopt : std::optional(options.devices),
          .dispatch_batches = options.dispatch_batches,
          .even_batches = options.even_batches,
          .fp32_modules = options.fp32_modules,
          .grad_scaler = options.grad_scaler,
          .gradient_accumulation = accumulation_of(options),
          .keep_memory = options.keep_memory,
          .num_nodes = options.num_nodes,
          .precision = options.mixed_precision,
          .project = options.project,
          .split_batches = options.split_batches,
          .step_scheduler_with_optimizer = options.step_scheduler_with_optimizer,
          .strategy = options.strategy,
          .synced_generators = options.synced_generators,
          .timeout = options.timeout};
}

RuntimeOptions fabric(const FabricOptions& options) {
  return {.accelerator = options.accelerator,
          .callbacks = options.callbacks,
          .deterministic = options.deterministic,
          .devices = options.devices,
          .dispatch_batches = options.dispatch_batches,
          .fp32_modules = options.fp32_modules,
          .grad_scaler = options.grad_scaler,
          .gradient_accumulation = options.gradient_accumulation,
          .keep_memory = options.keep_memory,
          .num_nodes = options.num_nodes,
          .precision = options.precision,
          .project = options.project,
          .strategy = options.strategy,
          .synced_generators = options.synced_generators,
          .timeout = options.timeout};
}

}  // namespace runtime
}  // namespace muster
