#pragma once

#include <set>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "muster/comm/communicator.h"
#include "muster/runtime/metrics.h"
#include "muster/trainer/options.h"
#include "muster/tree/state.h"
#include "trainer/hooks.h"

namespace muster::trainer {

/// The place in a run where a value is logged.
struct LogContext {
  Hook hook = Hook::none;
  int64_t batch_size = 1;
  int64_t loader = -1;  ///< index of the loader; -1: the loop has one loader, or the hook has none
  int64_t step = 0;     ///< number that changes with every batch
  bool evaluates = false;
  bool filler = false;  ///< the batch has no real sample, so its values do not count
};

/// "log("loss") in training_step": how a message about a call of log() begins. `metric` stands behind the name.
std::string log_in_hook(std::string_view name, Hook hook, std::string_view metric = "");

/// A logged value, or a sum of such: a number, or a tensor of one element that a device may still compute. The device
/// computes in the host's order, so the bits are equal. Only get() waits for a device.
class LoggedNumber {
 public:
  explicit LoggedNumber(double value = 0) : number_(value) {}
  explicit LoggedNumber(const at::Tensor& value);
  double number() const noexcept { return number_; }
  /// The number; waits for the device.
  double get() const;
  /// Whether get() returns without waiting.
  bool ready() const noexcept { return !late_.defined(); }
  /// The tensor on the device; undefined if the number is known.
  const at::Tensor& late() const noexcept { return late_; }
  /// The value as a tensor without dimensions, on its device, in the dtype in which values are summed there.
  at::Tensor tensor() const;
  /// Adds `weight` times the value.
  void add(const LoggedNumber& value, double weight = 1);
  void extend(const LoggedNumber& value, bool largest);
  LoggedNumber over(double divisor) const;

 private:
  double number_;
  at::Tensor late_;  // value on a device; replaces the number
};

using LateValues = std::vector<std::pair<std::string, LoggedNumber>>;

/// The last value of each logged name.
class LatestMetrics {
 public:
  void set(const std::string& name, double value) { pending_.erase(name), numbers_[name] = value; }
  void set(const std::string& name, const LoggedNumber& value);
  void clear() { numbers_.clear(), pending_.clear(); }
  State state_dict() const;
  void load_state_dict(const State& state);
  /// All last values; waits for devices that still compute them.
  const Metrics& get() const;
  /// The last value of this name. Requires: it was set.
  LoggedNumber late(const std::string& name) const;
  /// Makes the progress bar show this name from now on.
  void show(const std::string& name) { shown_.insert(name); }
  bool shows_any() const { return !shown_.empty(); }
  /// Values for the progress bar that are known without waiting.
  Metrics shown() const;

 private:
  mutable Metrics numbers_;
  mutable std::map<std::string, LoggedNumber> pending_;
  std::set<std::string> shown_;
};

// Why: docs/decisions/0105-metric-objects.md.

/// How a metric object is logged.
struct LoggedMetric {
  std::string name;
  int64_t loader;         ///< index of the loader; -1: none
  bool logger, prog_bar;  ///< receivers of the value besides callbacks
};

/// The value of a metric object for an epoch.
struct MetricValue : LoggedMetric {
  double value;
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
  struct Entry : LoggedMetric {
    Metric* metric;
    bool shared;
  };
  /// The saved state of a metric that has not been logged yet.
  struct Saved : LoggedMetric {
    State state;
    std::optional<double> value = {};
  };
  void take_up(const Entry& entry);
  std::vector<Saved> saved_entries() const;

  std::vector<Entry> entries_;
  std::vector<Saved> saved_;
  std::vector<std::pair<Metric*, State>> before_filler_;
  bool in_filler_ = false, had_filler_ = false;
};

/// Collects the values that one loop logs in an epoch, and reduces them to one value per name.
class LogBook {
 public:
  explicit LogBook(LatestMetrics& latest) : latest_(&latest) {}

  /// Throws: UsageError (MU441, MU442). Collective: for a step with options.sync_dist.
  void log(const LogContext& context, std::string_view name, const at::Tensor& value, const LogOptions& options,
           const comm::Communicator& group);
  void log(const LogContext& context, std::string_view name, double value, const LogOptions& options,
           const comm::Communicator& group) {
    keep(context, name, options, group, [&] { return LoggedNumber(value); });
  }
  /// Reduces the values logged since the last call over ranks, in one message, and adds the results to the latest
  /// metrics.
  /// Collective.
  void close(const comm::Communicator& group);
  /// The values of the epoch by loader, from all close() since begin(); values without a loader appear for each loader.
  std::vector<Metrics> results(std::size_t loaders) const;
  /// The step values for the logger since the last call.
  LateValues take_step_values();
  /// The epoch values for the logger from all close() since the last call.
  Metrics take_epoch_values() { return std::exchange(epoch_values_, {}); }
  /// The values logged for the epoch since the last close() on this rank, and the step values that wait for the logger.
  State state_dict() const;
  /// Adds the values of another book. `own`: it is this rank's, so its waiting step values go to this rank's logger.
  void add_state_dict(const State& state, bool own = true);
  /// Epoch values that wait for the logger; empty if none.
  State waiting_state() const;
  void load_waiting_state(const State& state);
  /// A copy of the book without its metric objects.
  LogBook snapshot() const;
  /// Begins an epoch.
  void begin() { entries_.clear(), results_.clear(), epoch_values_.clear(), metrics_.clear(); }
  /// Metric objects; close() also ends their epochs.
  MetricLog& metrics() { return metrics_; }
  const MetricLog& metrics() const { return metrics_; }

 private:
  struct Sum {
    LoggedNumber value = LoggedNumber();
    double weight = 0;
  };
  struct Entry {
    LogOptions options = {};
    std::string plain = {}, on_step = {}, on_epoch = {};  // names under which values are logged
    bool step = false, epoch = false;
    Sum of_step = {}, of_epoch = {};
    int64_t loader = -1, last_step = -1;
    bool fresh = false;  // take_step_values() has not returned the value yet
  };
  using Key = std::tuple<Hook, int64_t, std::string>;

  Entry& entry_of(const LogContext& context, std::string_view name, const LogOptions& options);
  /// Entries that are reduced over ranks, by reduction, hook, loader and names.
  using Shared = std::map<std::string, Entry*>;
  Shared shared_entries();
  bool exchange(const comm::Communicator& group, const Shared& mine);
  void keep_foreign(const std::string& key, double value, double weight);
  void reduce(const comm::Communicator& group);
  void keep(const LogContext& context, std::string_view name, const LogOptions& options,
            const comm::Communicator& group, c10::function_ref<LoggedNumber()> read);
  /// Reduces a step value over ranks; a batch without real samples does not count. A value on a device stays there.
  static LoggedNumber of_ranks(const LogContext& context, const LoggedNumber& number, LogReduction how,
                               const comm::Communicator& group);
  /// The sum of no values.
  static Sum nothing(LogReduction how);
  static void add(Sum& sum, const LoggedNumber& value, double weight, LogReduction how);
  static LoggedNumber result(const Sum& sum, LogReduction how);

  LatestMetrics* latest_;
  MetricLog metrics_;
  std::map<Key, Entry> entries_;
  std::map<std::pair<int64_t, std::string>, double> results_;  // values of the epoch, by loader and name
  Metrics epoch_values_;
  std::vector<std::string> agreed_;  // sorted keys of Shared that every rank reduces
};

}  // namespace muster::trainer
