#pragma once

#include "muster/precision/options.h"
#include "muster/strategy/options.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// How many processes, or which devices: 2, {0, 2}, "auto", "0,2", "-1".
class Devices {
 public:
  Devices() = default;
  Devices(int count) : text_(std::to_string(count)) {}
  Devices(std::initializer_list<int> indices);
  Devices(const char* text) : text_(text) {}
  Devices(std::string text) : text_(std::move(text)) {}
  const std::string& text() const noexcept { return text_; }
  friend bool operator==(const Devices&, const Devices&) = default;

 private:
  std::string text_ = "auto";
};

/// Options of muster::Accelerator, with Accelerate's words and defaults.
struct AcceleratorOptions {
  /// Stay on the CPU even where there is an accelerator.
  bool cpu = false;
  /// Only deterministic kernels; an operator that has none throws.
  bool deterministic = false;
  /// Every rank gets the same number of equal batches: the first samples are repeated to fill the last ones.
  bool even_batches = true;
  Precision mixed_precision = "no";
  /// A loader's batch_size is the whole job's, cut into one piece per rank, instead of each rank's.
  bool split_batches = false;
  Strategy strategy = "auto";
  /// The longest that a rank waits for the others, in seconds.
  int64_t timeout_seconds = 600;
};

/// Options of muster::Fabric, with Fabric's words and defaults.
struct FabricOptions {
  /// "auto", "cpu", "cuda" or "gpu".
  std::string accelerator = "auto";
  Devices devices = {};
  int num_nodes = 1;
  Precision precision = "32-true";
  Strategy strategy = "auto";
  int64_t timeout_seconds = 600;
};

/// Options of the runtime behind both doors; a door's preset fills them.
struct RuntimeOptions {
  std::string accelerator = "auto";
  bool deterministic = false;
  /// Empty: as many as the launcher says. Otherwise launch() brings them up.
  std::optional<Devices> devices = {};
  bool even_batches = true;
  int num_nodes = 1;
  Precision precision = "32-true";
  bool split_batches = false;
  Strategy strategy = "auto";
  int64_t timeout_seconds = 600;
};

}  // namespace muster
