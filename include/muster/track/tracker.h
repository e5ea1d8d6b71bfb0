#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "muster/track/logged_value.h"

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

}  // namespace muster
