#include "muster/runtime/options.h"

#include "muster/runtime/presets.h"

namespace muster {

Devices::Devices(std::initializer_list<int> indices) : text_() {
  for (int index : indices) text_ += (text_.empty() ? "" : ",") + std::to_string(index);
  // One index is still a list: "3," and not the count 3.
  if (indices.size() == 1) text_ += ",";
}

namespace runtime {

RuntimeOptions accelerate(const AcceleratorOptions& options) {
  return {.accelerator = options.cpu ? "cpu" : "auto",
          .deterministic = options.deterministic,
          .even_batches = options.even_batches,
          .precision = options.mixed_precision,
          .split_batches = options.split_batches,
          .strategy = options.strategy,
          .timeout_seconds = options.timeout_seconds};
}

RuntimeOptions fabric(const FabricOptions& options) {
  return {.accelerator = options.accelerator,
          .devices = options.devices,
          .num_nodes = options.num_nodes,
          .precision = options.precision,
          .strategy = options.strategy,
          .timeout_seconds = options.timeout_seconds};
}

}  // namespace runtime
}  // namespace muster
