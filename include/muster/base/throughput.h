#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace muster {

/// How a Throughput counts.
struct ThroughputOptions {
  double available_flops = 0;  ///< what one device could do, in flops a second; 0: unknown, and no utilisation is told
  int window = 100;            ///< updates that a rate looks back over
  int world_size = 1;          ///< ranks that work alike; their sums are told where there are several
};

/// Counts so far, all from the start of training. `lengths` are tokens or other items; 0: not counted.
struct ThroughputCounts {
  int64_t batches = 0;
  double flops = 0;            ///< since the last update, unlike the others
  int64_t lengths = 0;
  int64_t samples = 0;
  double seconds = 0;
};

/// Rates of a training run over a moving window, under the names that users of Lightning know:
/// "time", "batches", "samples", "lengths" so far; "device/batches_per_sec", "device/samples_per_sec", "device/items_per_sec",
/// "device/flops_per_sec", "device/mfu" of this rank; the same without "device/" (but mfu) of all ranks, where there are several.
/// Thread safety: one thread at a time.
class Throughput {
 public:
  /// Throws: ConfigError (MU007) for a window below 2 or a world without ranks.
  explicit Throughput(const ThroughputOptions& options = {});

  /// Throws: UsageError (MU008) unless time and counts grow, with at least one sample a batch.
  void update(const ThroughputCounts& counts);
  /// Rates from the oldest to the newest update of the window; no rates before the second update.
  std::map<std::string, double> compute() const;
  void reset() { window_.clear(); }

 private:
  void add_rates(std::map<std::string, double>& values) const;

  ThroughputOptions options_;
  std::deque<ThroughputCounts> window_;
};

}  // namespace muster
