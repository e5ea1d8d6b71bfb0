#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/track/logged_value.h"

namespace muster::track {

// MLflow's limits, in bytes or items. Sources: the pages of its REST API (Runs Log Batch), mlflow/utils/validation.py.
inline constexpr std::size_t kLongestName = 250;
inline constexpr std::size_t kLongestParam = 6000;
inline constexpr std::size_t kLongestTag = 5000;
inline constexpr std::size_t kMostMetrics = 1000;
inline constexpr std::size_t kMostParams = 100;

/// Reports a problem found while values become lines: a word for its kind, so that each kind is reported once, and a
/// sentence.
using Notice = std::function<void(std::string_view kind, const std::string& sentence)>;

int64_t milliseconds_since_1970();
/// The text cut to at most `most` bytes, at a whole character.
std::string cut_text(std::string_view text, std::size_t most);
/// The name in a form that MLflow accepts: letters, digits, "_-. /" and non-ASCII characters, a relative path without
/// "..", of at most 250 bytes. Longer names end with a number that distinguishes them.
std::string mlflow_name(std::string_view name);

/// The numbers and booleans of a step as lines of JSON, {"metrics":[{"key","value","timestamp","step"},...]}, each with
/// at most as many as MLflow takes at once. Numbers that JSON lacks are "NaN", "Infinity" and "-Infinity". Texts and
/// histograms are left out with a notice; images, without one.
std::vector<std::string> metric_lines(const LoggedStep& step, const Notice& notice);
/// Hyper-parameters as lines, {"params":[{"key","value"},...]}.
std::vector<std::string> param_lines(std::span<const LoggedValue> values, const Notice& notice);
/// The line for a file or folder in artifacts: {"artifact":"name"}.
std::string artifact_line(std::string_view name);
/// The line for the end of a run: {"end_time":...,"status":"FINISHED"}.
std::string status_line(std::string_view status);

}  // namespace muster::track
