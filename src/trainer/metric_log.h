#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/runtime/metric.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

struct LogContext;

// Why: docs/decisions/0105-metric-objects.md.

/// The value of a metric object for an epoch.
struct MetricValue {
  std::string name;
  int64_t loader;  ///< index of the loader; -1: none
  double value;
  bool logger, prog_bar;  ///< receivers of the value besides callbacks
};

/// The metric objects that one loop logs in an epoch. Thread safety: one thread at a time.
class MetricLog {
 public:
  /// Throws: UsageError (MU441) in a hook that cannot log, (MU458) for a metric that is already logged under another
  /// name, for on_step, or after a batch without real samples that may have changed it.
  void add(const LogContext& context, std::string_view name, Metric& metric, const LogOptions& options);
  /// begin_filler() and end_filler() enclose a batch without real samples: its changes are undone.
  void begin_filler();
  void end_filler();
  /// Ends the epoch of all metrics logged since the last call, over all ranks in one message. Returns the values that
  /// are single numbers. Collective.
  std::vector<MetricValue> close(const comm::Communicator& group);
  void clear() { *this = {}; }
  /// Resets the metrics logged since the last close() to their initial values, without ending their epoch.
  void reset();
  /// The metrics logged since the last close(), on this rank. `values`: include their results, for an epoch in which no
  /// further batch logs them. Collective: with `values`.
  State state_dict(const comm::Communicator& group, bool values) const;
  /// Adds the state of another log. A metric takes its state when it is first logged, unless its module has loaded it.
  void add_state_dict(const State& state);
  /// A copy of the log without its metrics.
  MetricLog snapshot() const;

 private:
  struct Entry {
    Metric* metric;
    std::string name;
    int64_t loader;
    bool shared, logger, prog_bar;
  };
  /// The saved state of a metric that has not been logged yet.
  struct Saved {
    std::string name;
    int64_t loader;
    bool logger, prog_bar;
    State state;
    std::optional<double> value;
  };
  void take_up(const Entry& entry);
  std::vector<Saved> saved_entries() const;

  std::vector<Entry> entries_;
  std::vector<Saved> saved_;
  std::vector<std::pair<Metric*, State>> before_filler_;
  bool in_filler_ = false, had_filler_ = false;
};

}  // namespace muster::trainer
