#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "append_file.h"
#include "muster/track/tracker.h"

namespace muster::track {

/// Writes metrics.jsonl: one JSON object per call, with "step", "time" (seconds since 1970) and the values by name; one
/// with "hyperparameters", and at the end one with "status". Numbers that JSON lacks are "NaN", "Infinity" and
/// "-Infinity", as in the JSON of Protocol Buffers. Images are left out.
class JsonLinesTracker final : public Tracker {
 public:
  explicit JsonLinesTracker(const std::filesystem::path& folder) : file_(folder / "metrics.jsonl", whole_lines) {}

  std::string name() const override { return "jsonl"; }
  void log_hyperparams(std::span<const LoggedValue> values) override;
  void log(const LoggedStep& step) override;
  void flush() override { file_.flush(); }
  void finish(RunStatus status) override;

 private:
  AppendFile file_;
};

}  // namespace muster::track
