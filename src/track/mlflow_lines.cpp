#include "mlflow_lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/shown.h"
#include "crc32c.h"
#include "record.h"

namespace muster::track {
namespace {

using nlohmann::json;

std::string line_of(const json& content) { return content.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

json number_value(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

/// The components of a path without empty ones and ".", and with "_" for "..".
std::string relative_path(std::string_view path) {
  std::string result;
  while (!path.empty()) {
    const auto part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (!result.empty()) result += '/';
    result += part == ".." ? "_" : part;
  }
  return result.empty() ? "_" : result;
}

std::string name_with_notice(std::string_view name, const Notice& notice) {
  auto taken = mlflow_name(name);
  if (taken != name)
    notice("name", "MLflow takes no name such as " + in_quotes(name) + ", which is logged as " + in_quotes(taken));
  return taken;
}

std::string param_text(const LoggedValue& value, const Notice& notice) {
  auto text = std::visit(
      Overloaded{[](double number) { return number_text(number); }, [](int64_t number) { return number_text(number); },
                 [](bool flag) { return std::string(flag ? "true" : "false"); },
                 [](std::string_view words) { return std::string(words); }, [](const auto&) { return std::string(); }},
      value.data);
  if (text.size() <= kLongestParam) return text;
  notice("param", "MLflow takes " + std::to_string(kLongestParam) + " bytes of a parameter, and " +
                      in_quotes(value.name) + " has " + std::to_string(text.size()) + "; the rest is cut off");
  return cut_text(text, kLongestParam);
}

/// Divides the items into lines of at most `most` items, under a key.
std::vector<std::string> lines_of(const char* key, const json& items, std::size_t most) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < items.size(); begin += most) {
    const auto end = std::min(begin + most, items.size());
    const auto at = [&](std::size_t index) { return items.begin() + static_cast<std::ptrdiff_t>(index); };
    lines.push_back(line_of({{key, json(json::array_t(at(begin), at(end)))}}));
  }
  return lines;
}

}  // namespace

int64_t milliseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string cut_text(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;  // inside a character
  return std::string(text.substr(0, most));
}

std::string mlflow_name(std::string_view name) {
  constexpr std::string_view kTaken = "_-. /";
  auto taken = relative_path(name);
  for (auto& c : taken)
    if (static_cast<unsigned char>(c) < 128 && !std::isalnum(static_cast<unsigned char>(c)) &&
        kTaken.find(c) == std::string_view::npos)
      c = '_';
  if (taken.size() <= kLongestName) return taken;
  std::array<char, 10> number{};
  std::snprintf(number.data(), number.size(), "-%08x", masked_crc32c(name));
  return cut_text(taken, kLongestName - 9) + number.data();
}

std::vector<std::string> metric_lines(const LoggedStep& step, const Notice& notice) {
  const auto timestamp = std::llround(step.time * 1000);
  auto items = json::array();
  const auto add = [&](const LoggedValue& value, json number) {
    items.push_back({{"key", name_with_notice(value.name, notice)},
                     {"step", step.step},
                     {"timestamp", timestamp},
                     {"value", std::move(number)}});
  };
  const auto leave_out = [&](const LoggedValue& value, const char* what) {
    notice(what, std::string("MLflow has no place for ") + what + " of a step, such as " + in_quotes(value.name) +
                     ", which is left out; `jsonl` and `tensorboard` take it");
  };
  for (const auto& value : step.values)
    std::visit(Overloaded{[&](double number) { add(value, number_value(number)); },
                          [&](int64_t number) { add(value, number); }, [&](bool flag) { add(value, flag ? 1 : 0); },
                          [&](std::string_view) { leave_out(value, "texts"); },
                          [&](const Histogram*) { leave_out(value, "histograms"); }, [&](const PngImage&) {}},
               value.data);
  return lines_of("metrics", items, kMostMetrics);
}

std::vector<std::string> param_lines(std::span<const LoggedValue> values, const Notice& notice) {
  auto items = json::array();
  for (const auto& value : values)
    items.push_back({{"key", name_with_notice(value.name, notice)}, {"value", param_text(value, notice)}});
  return lines_of("params", items, kMostParams);
}

std::string artifact_line(std::string_view name) { return line_of({{"artifact", name}}); }

std::string status_line(std::string_view status) {
  return line_of({{"end_time", milliseconds_since_1970()}, {"status", status}});
}

}  // namespace muster::track
