#include "muster/base/detail/options.h"

#include <algorithm>
#include <charconv>

#include "muster/base/detail/letter_case.h"
#include "muster/base/detail/options_list.h"

namespace muster::options {
namespace {

template <class T>
bool read_number(std::string_view text, T& value) {
  T number{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  value = number;
  return true;
}

std::string one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) == words.end() ? "" : std::string(text);
}

}  // namespace

std::string Value<bool>::read(const std::string& given, bool& value) {
  const std::string text = lower_case(given);
  bool yes = !one_of(text, {"true", "yes", "on", "1"}).empty();
  if (!yes && one_of(text, {"false", "no", "off", "0"}).empty()) return "true or false";
  value = yes;
  return "";
}
std::string Value<bool>::write(const bool& value) { return value ? "true" : "false"; }

std::string Value<int>::read(const std::string& text, int& value) {
  return read_number(text, value) ? "" : "a whole number";
}
std::string Value<int>::write(const int& value) { return std::to_string(value); }

std::string Value<int64_t>::read(const std::string& text, int64_t& value) {
  return read_number(text, value) ? "" : "a whole number";
}
std::string Value<int64_t>::write(const int64_t& value) { return std::to_string(value); }

std::string Value<uint64_t>::read(const std::string& text, uint64_t& value) {
  return read_number(text, value) ? "" : "a whole number from 0";
}
std::string Value<uint64_t>::write(const uint64_t& value) { return std::to_string(value); }

std::string Value<double>::read(const std::string& text, double& value) {
  return read_number(text, value) ? "" : "a number";
}
std::string Value<double>::write(const double& value) {
  char text[32];  // the shortest text that reads back as the same number
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string Value<std::string>::read(const std::string& text, std::string& value) {
  const auto word = unquoted(text);
  // A line keeps the quotes of what may be an item of a list; see options_line.h.
  value = word && list_item(*word) == text ? *word : text;
  return "";
}
std::string Value<std::string>::write(const std::string& value) { return value; }

std::string Value<std::chrono::milliseconds>::read(const std::string& text, std::chrono::milliseconds& value) {
  const std::string wanted = "a duration such as 250ms, 30s, 5min or 2h";
  size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  if (!read_number(std::string_view(text).substr(0, digits), number)) return wanted;
  std::string unit = text.substr(digits);
  double factor = unit == "ms" ? 1 : unit == "s" ? 1e3 : unit == "min" ? 6e4 : unit == "h" ? 3.6e6 : 0;
  if (factor == 0 || number * factor > 1e15) return wanted;
  value = std::chrono::milliseconds(static_cast<int64_t>(number * factor));
  return "";
}
std::string Value<std::chrono::milliseconds>::write(const std::chrono::milliseconds& value) {
  return value.count() % 1000 ? std::to_string(value.count()) + "ms" : std::to_string(value.count() / 1000) + "s";
}

std::string Value<std::vector<std::string>>::read(const std::string& text, std::vector<std::string>& value) {
  value.clear();
  auto items = split_items(text);
  if (items.back().empty()) items.pop_back();  // a comma at the end, or nothing
  for (const auto& item : items) {
    const auto word = item.empty() ? std::nullopt : unquoted(item);
    if (!word) return "a list such as a,b, where an item with a comma stands in double quotes,";
    value.push_back(*word);
  }
  return "";
}
std::string Value<std::vector<std::string>>::write(const std::vector<std::string>& value) {
  std::string result;
  for (const auto& word : value) result += (result.empty() ? "" : ",") + list_item(word);
  return result;
}

}  // namespace muster::options
