#include "hyperparams_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "append_file.h"
#include "number_text.h"

namespace muster::track {
namespace {

// A quoted JSON string is also a YAML string.
std::string yaml_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// YAML 1.1 takes 1e-05 for text, and 1 for an integer.
std::string yaml_number(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  auto text = number_text(value);
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

// Unquoted y, no, on, null, ~ and similar words are not text.
std::string yaml_name(std::string_view name) {
  static const std::set<std::string_view> words{"false", "null", "true"};
  const auto plain = [](unsigned char c) { return std::islower(c) || c == '_'; };
  const bool bare = name.size() > 3 && std::all_of(name.begin(), name.end(), plain) && !words.contains(name);
  return bare ? std::string(name) : yaml_text(name);
}

std::string yaml_value(const LoggedValue& value) {
  return std::visit(
      Overloaded{[](double number) { return yaml_number(number); }, [](int64_t number) { return number_text(number); },
                 [](bool flag) { return std::string(flag ? "true" : "false"); },
                 [](std::string_view text) { return yaml_text(text); },
                 [](const auto&) { return std::string("null"); }},
      value.data);
}

}  // namespace

void HyperparamsFile::log_hyperparams(std::span<const LoggedValue> values) {
  for (const auto& value : values) lines_[std::string(value.name)] = yaml_value(value);
  std::string text;
  for (const auto& [name, value] : lines_) text += yaml_name(name) + ": " + value + '\n';
  replace_file(path_, text);
}

}  // namespace muster::track
