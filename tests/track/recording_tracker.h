#pragma once

#include <string>
#include <vector>

#include "muster/track/trackers.h"

namespace muster::track {

/// A user's own logger.
class RecordingTracker : public Tracker {
 public:
  std::string name() const override { return "mine"; }
  void log_hyperparams(std::span<const LoggedValue> values) override {
    for (const auto& value : values) calls.push_back("hyperparam " + std::string(value.name));
  }
  void log(const LoggedStep& step) override {
    for (const auto& value : step.values) calls.push_back(std::to_string(step.step) + " " + std::string(value.name));
  }
  void finish(RunStatus status) override { calls.push_back(status == RunStatus::success ? "success" : "failed"); }

  std::vector<std::string> calls;
};

}  // namespace muster::track
