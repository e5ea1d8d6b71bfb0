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

/// The number that a metric object came to in an epoch.
struct MetricValue {
  std::string name;
  int64_t loader;  ///< -1: none
  double value;
  bool logger, prog_bar;  ///< who gets it, beside callbacks
};

/// The metric objects that one loop logs in an epoch. Thread safety: one thread at a time.
class MetricLog {
 public:
  /// Throws: UsageError (MU441) in a hook that cannot log, (MU458) for a metric that is logged under another name, too,
  /// for on_step, or after a batch without real samples that may have changed it.
  void add(const LogContext& context, std::string_view name, Metric& metric, const LogOptions& options);
  /// Between these runs a batch without real samples: what it changes is undone.
  void begin_filler();
  void end_filler();
  /// Ends the epoch of all metrics logged since the last call, over all ranks in one message. Returns the values that
  /// are numbers. Collective.
  std::vector<MetricValue> close(const comm::Communicator& group);
  void clear() { *this = {}; }
  /// Gives the metrics logged since the last close() their initial values: their epoch does not end.
  void reset();
  /// The metrics logged since the last close(), on this rank. `values`: with what they would come to, for an epoch that
  /// has no further batch to log them. Collective: with `values`.
  State state_dict(const comm::Communicator& group, bool values) const;
  /// Adds what another log had: a metric takes it up when it is first logged, unless its module has loaded it itself.
  void add_state_dict(const State& state);
  /// The same log, as it stands now, without its metrics.
  MetricLog snapshot() const;

 private:
  struct Entry {
    Metric* metric;
    std::string name;
    int64_t loader;
    bool shared, logger, prog_bar;
  };
  /// A metric of a checkpoint, which is not known yet.
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
