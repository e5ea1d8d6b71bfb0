#include <array>
#include <string>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/device/options.h"
#include "muster/precision/options.h"
#include "muster/runtime/options.h"
#include "options/runtime_fields.h"

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
  auto result = copied_options<RuntimeOptions>(options);
  if (options.devices == Devices()) result.devices.reset();  // the number that the launcher has started
  if (options.cpu) result.accelerator = "cpu";
  result.gradient_accumulation = accumulation_of(options);
  result.precision = options.mixed_precision;
  return result;
}

RuntimeOptions fabric(const FabricOptions& options) { return copied_options<RuntimeOptions>(options); }

}  // namespace runtime
}  // namespace muster

namespace muster::precision {

void a_number_for_a_precision_is_16_32_or_64(int bits) {
  throw ConfigError("MU130", "unknown precision " + std::to_string(bits) +
                                 "; the known numbers are 16 (16-mixed), 32 (32-true) and 64 (64-true)");
}

void unknown_precision(std::string_view name) {
  throw ConfigError("MU130", "unknown precision '" + std::string(name) + "'" +
                                 known_ones(kPrecisionNames, [](const auto& entry) { return entry.name; }));
}

}  // namespace muster::precision

namespace muster::device {

void unknown_keep_memory(std::string_view name) {
  throw ConfigError("MU002", "keep_memory (MUSTER_KEEP_MEMORY) is '" + std::string(name) + "'" +
                                 known_ones(std::array{"auto", "on (1)", "off (0)"}));
}

}  // namespace muster::device
