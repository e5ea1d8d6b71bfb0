#include "muster/base/detail/options.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "muster/base/error.h"

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

std::string join(const std::vector<std::string>& words) {
  std::string result;
  for (const auto& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

std::string one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) == words.end() ? "" : std::string(text);
}

}  // namespace

std::string Value<bool>::read(const std::string& text, bool& value) {
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

std::string Value<double>::read(const std::string& text, double& value) {
  return read_number(text, value) ? "" : "a number";
}
std::string Value<double>::write(const double& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string Value<std::string>::read(const std::string& text, std::string& value) {
  value = text;
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
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) value.push_back(word);
  return "";
}
std::string Value<std::vector<std::string>>::write(const std::vector<std::string>& value) {
  std::string result;
  for (const auto& word : value) result += (result.empty() ? "" : ",") + word;
  return result;
}

std::string Description::flag() const {
  std::string result = "--" + name;
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

std::map<std::string, Found> find(const std::vector<Description>& table, const std::string& section,
                                  const Sources& sources) {
  std::vector<std::string> known;
  known.reserve(table.size());
  for (const auto& option : table) known.push_back(option.name);
  const auto& in_file = sources.file.section(section);
  for (const auto& [key, found] : in_file)
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw ConfigError("MU001", found.place + ": unknown option '" + key + "'" +
                                     (section.empty() ? "" : " in section '" + section + "'") +
                                     "; known: " + join(known));
  std::map<std::string, Found> result;
  for (const auto& option : table) {
    auto flag = sources.flags.find(option.name);
    auto variable = option.variable.empty() ? std::nullopt : sources.variables.find(option.variable);
    if (flag != sources.flags.end()) result[option.name] = {flag->second, "flag " + option.flag()};
    else if (variable) result[option.name] = {*variable, "variable " + option.variable};
    else if (auto found = in_file.find(option.name); found != in_file.end()) result[option.name] = found->second;
  }
  return result;
}

void refuse(const Description& option, const Found& found, const std::string& wanted) {
  throw ConfigError("MU002", found.place + ": option '" + option.name + "' is '" + found.text + "', but " + wanted +
                                 " is wanted" + (option.unit.empty() ? "" : " (" + option.unit + ")") +
                                 ": correct it there");
}

std::string to_markdown(const std::vector<Description>& table) {
  std::string result = "| flag | key in the file | variable | default | unit | meaning |\n|---|---|---|---|---|---|\n";
  for (const auto& option : table) {
    auto code = [](const std::string& text) { return text.empty() ? std::string("–") : "`" + text + "`"; };
    std::string flag = "`" + option.flag() + "`";
    if (option.is_switch) flag += ", `--no-" + option.flag().substr(2) + "`";
    result += "| " + flag + " | " + code(option.name) + " | " + code(option.variable) + " | " +
              code(option.default_text) + " | " + (option.unit.empty() ? "–" : option.unit) + " | " + option.help +
              " |\n";
  }
  return result;
}

}  // namespace muster::options
