#include "json_lines_tracker.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include "number_text.h"

namespace muster::track {
namespace {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isfinite(value)) return number_text(value);
  return std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
}

std::string json_list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ",") + json_number(value);
  return "[" + text + "]";
}

std::string json_histogram(const Histogram& of) {
  return "{\"count\":" + std::to_string(of.count) + ",\"min\":" + json_number(of.min) +
         ",\"max\":" + json_number(of.max) + ",\"sum\":" + json_number(of.sum) +
         ",\"sum_squares\":" + json_number(of.sum_squares) + ",\"limits\":" + json_list(of.limits) +
         ",\"counts\":" + json_list(of.counts) + "}";
}

/// Appends "name":value, with a comma before it unless it is the first; nothing for an image.
void append(std::string& line, const LoggedValue& value) {
  const auto text = std::visit(
      Overloaded{[](double number) { return json_number(number); }, [](int64_t number) { return number_text(number); },
                 [](bool flag) { return std::string(flag ? "true" : "false"); },
                 [](std::string_view words) { return json_text(words); },
                 [](const Histogram* histogram) { return json_histogram(*histogram); },
                 [](const PngImage&) { return std::string(); }},
      value.data);
  if (text.empty()) return;
  if (line.back() != '{') line += ',';
  line += json_text(value.name) + ':' + text;
}

}  // namespace

void JsonLinesTracker::log_hyperparams(std::span<const LoggedValue> values) {
  std::string line = "{\"hyperparameters\":{";
  for (const auto& value : values) append(line, value);
  file_.add(line + "}}\n");
}

void JsonLinesTracker::log(const LoggedStep& step) {
  const auto has = [&](std::string_view name) {
    return std::any_of(step.values.begin(), step.values.end(), [&](const auto& value) { return value.name == name; });
  };
  std::string line = "{";
  if (!has("step")) append(line, {"step", step.step});
  if (!has("time")) append(line, {"time", step.time});
  for (const auto& value : step.values) append(line, value);
  file_.add(line + "}\n");
}

void JsonLinesTracker::finish(RunStatus status) {
  file_.add(status == RunStatus::success ? "{\"status\":\"success\"}\n" : "{\"status\":\"failed\"}\n");
  file_.flush();
}

}  // namespace muster::track
