#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace muster {

/// How a Throughput counts.
struct ThroughputOptions {
  double available_flops = 0;  ///< peak of one device, in flops a second; 0: unknown, and no utilisation is reported
  int window = 100;            ///< updates over which a rate is computed; Lightning's default
  int world_size = 1;          ///< ranks that do equal work; with several ranks, sums over ranks are reported
};

/// Counts since the start of training. `lengths` are tokens or other items; 0: not counted.
struct ThroughputCounts {
  int64_t batches = 0;
  double flops = 0;  ///< since the last update, unlike the other counts
  int64_t lengths = 0;
  int64_t samples = 0;
  double seconds = 0;
};

/// Rates of a training run over a moving window, under Lightning's names:
/// "time", "batches", "samples", "lengths" so far; "device/batches_per_sec", "device/samples_per_sec",
/// "device/items_per_sec", "device/flops_per_sec", "device/mfu" of this rank; with several ranks, also without
/// "device/" (except mfu), for all ranks together.
/// Thread safety: one thread at a time.
class Throughput {
 public:
  /// Throws: ConfigError (MU007) for a window below 2 or a world size below 1.
  explicit Throughput(const ThroughputOptions& options = {});

  /// Adds counts.
  /// Throws: UsageError (MU008) unless time and counts grow, with at least one sample per batch.
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
