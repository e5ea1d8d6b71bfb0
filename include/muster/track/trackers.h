#pragma once

#include <algorithm>  // std::ranges::input_range
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/track/logged_value.h"
#include "muster/track/options.h"
#include "muster/track/throughput.h"

namespace muster {

/// How a run ended.
enum class RunStatus { failed, success };

/// Base class of experiment loggers, such as one that sends values to a service: override log(), and other functions as
/// needed. An exception of a function is logged once, as a warning, and later calls continue.
/// Thread safety: Trackers calls all functions of all trackers on one background thread, in the order of logging.
class Tracker {
 public:
  virtual ~Tracker() = default;
  /// The name by which Trackers::get_tracker() finds it.
  virtual std::string name() const { return "tracker"; }
  /// The hyper-parameters of the run. Later calls add to them, or replace those of equal name.
  virtual void log_hyperparams(std::span<const LoggedValue>) {}
  /// Logs the values of one step, which are valid only during the call. Skips values that the logger does not support,
  /// such as images.
  virtual void log(const LoggedStep& step) = 0;
  /// Logs a file or a folder that was copied into the run's folder.
  virtual void log_artifact(std::string_view /*name*/, const std::filesystem::path& /*copy*/) {}
  /// Writes buffered values. Called at least every second while there are new values.
  virtual void flush() {}
  /// Ends the run. It is the last call.
  virtual void finish(RunStatus) {}
};

namespace track {
class Run;
}

/// Named values in a map or a list of pairs, such as what Throughput::compute() returns.
template <class R>
concept NamedValues = std::ranges::input_range<const R> && requires(std::ranges::range_reference_t<const R> value) {
  LoggedValue(value.first, value.second);
};

/// The trackers of a run. log() copies the values, which takes about a microsecond; one background thread writes them,
/// in order, within a fifth of a second. Copies refer to one run. The destructor of the last copy finishes the run, as
/// failed if an exception destroys it. std::exit and an uncaught exception also finish it. SIGKILL loses values of the
/// last fifth of a second; the files remain readable up to their last complete record.
/// If a file cannot be written, one warning is logged (MU422), and training continues.
/// Thread safety: all functions from any thread.
class Trackers {
 public:
  /// Tracks nothing; used on ranks other than the main one.
  Trackers() = default;
  /// Creates the run's folder and starts the thread.
  /// Throws: ConfigError (MU420, MU531) for an unknown tracker; (MU421, MU425) if the folder cannot be made; (MU530,
  /// MU532) if "mlflow" has no server or no libcurl.
  explicit Trackers(const TrackersOptions& options);

  /// Logs hyper-parameters: numbers, bools and texts. They are also saved in the run's hparams.yaml.
  /// Throws: as log().
  void log_hyperparams(std::initializer_list<LoggedValue> values) const { add_hyperparams(as_span(values)); }
  void log_hyperparams(std::span<const LoggedValue> values) const { add_hyperparams(values); }
  template <NamedValues R>
  void log_hyperparams(const R& values) const {
    add_hyperparams(as_list(values));
  }

  /// Logs values at a step: log({{"loss", loss}, {"lr", lr}}, step). Calls without a step are numbered from 0.
  /// Throws: UsageError (MU423) for a value without a name, or an image that is not a PNG; (MU424) after finish();
  /// (MU427) for a tensor with several elements.
  void log(std::initializer_list<LoggedValue> values, std::optional<int64_t> step = {}) const {
    add(as_span(values), step);
  }
  void log(std::span<const LoggedValue> values, std::optional<int64_t> step = {}) const { add(values, step); }
  template <NamedValues R>
  void log(const R& values, std::optional<int64_t> step = {}) const {
    add(as_list(values), step);
  }

  /// Copies a file or a folder into the run's folder, as artifacts/name, and hands the copy to Tracker::log_artifact().
  /// Empty name: that of the file. An existing copy of this name is replaced.
  /// Throws: ConfigError (MU457) if it cannot be copied, or for a name that leads out of the folder.
  void log_artifact(const std::filesystem::path& file, const std::string& name = {}) const;

  /// Returns the tracker of this name alone: values that are logged to it go to no other tracker.
  /// Throws: ConfigError (MU420), listing the names, for an unknown name.
  Trackers get_tracker(std::string_view name) const;
  /// The run's folder; empty if nothing is tracked.
  std::filesystem::path folder() const;
  /// Waits until all logged values are written (for MLflow: to the file from which they are sent). Returns false after
  /// the time-out.
  bool flush() const;
  /// Writes the remaining values and ends the run. A second call does nothing.
  void finish(RunStatus status = RunStatus::success) const;

 private:
  static std::span<const LoggedValue> as_span(std::initializer_list<LoggedValue> values) {
    return {values.begin(), values.size()};
  }
  template <class R>
  static std::vector<LoggedValue> as_list(const R& values) {
    std::vector<LoggedValue> list;
    for (const auto& [name, value] : values) list.emplace_back(name, value);
    return list;
  }
  void add(std::span<const LoggedValue> values, std::optional<int64_t> step) const;
  void add_hyperparams(std::span<const LoggedValue> values) const;

  std::shared_ptr<track::Run> run_;
  int only_ = -1;  // index of the one tracker; -1: all trackers
};

}  // namespace muster
