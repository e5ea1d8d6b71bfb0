#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "muster/track/logged_value.h"

namespace muster {

/// How a run ended.
enum class RunStatus { failed, success };

/// Base class of experiment loggers, such as one that sends values to a service: override log(), and what else it
/// needs. Thread safety: Trackers calls all functions of all trackers on one background thread, in the order in which
/// they were logged. What a function throws is logged once, as a warning, and later calls go on.
class Tracker {
 public:
  virtual ~Tracker() = default;
  /// The name by which Trackers::get_tracker() finds it.
  virtual std::string name() const { return "tracker"; }
  /// The hyper-parameters of the run. Later calls add to those, or replace those of the same name.
  virtual void log_hyperparams(std::span<const LoggedValue>) {}
  /// The values of one step. They are gone after the call. It skips what it has no place for, such as images.
  virtual void log(const LoggedStep& step) = 0;
  /// A file or a folder that was copied into the run's folder.
  virtual void log_artifact(std::string_view /*name*/, const std::filesystem::path& /*copy*/) {}
  /// Called at least every second while there are new values: write what is buffered.
  virtual void flush() {}
  /// The run is over. No call follows.
  virtual void finish(RunStatus) {}
};

}  // namespace muster
