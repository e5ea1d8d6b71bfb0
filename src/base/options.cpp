#include "muster/base/detail/options.h"

#include "base/options_text.h"
#include "muster/base/error.h"
#include "muster/base/time_span.h"
#include "text.h"

namespace muster::options {
namespace {

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto number = parse_number<T>(text);
  if (number) value = *number;
  return number.has_value();
}

/// Milliseconds per unit; 0 for an unknown unit.
double factor_of(std::string_view unit) {
  return unit == "ms" ? 1 : unit.empty() || unit == "s" ? 1e3 : unit == "min" ? 6e4 : unit == "h" ? 3.6e6 : 0;
}

/// DD:HH:MM:SS, or a timedelta as Python prints it: "H:MM:SS" or "2 days, H:MM:SS".
std::optional<TimeSpan> read_clock(std::string text) {
  std::string days = "0";
  if (const auto word = text.find(" day"); word != std::string::npos) {
    const auto comma = text.find(", ", word);
    if (comma == std::string::npos) return {};
    days = text.substr(0, word);
    text.erase(0, comma + 2);
  } else if (std::count(text.begin(), text.end(), ':') != 2) {
    return TimeSpan::parse(text);
  }
  return TimeSpan::parse(days + ":" + (text.find(':') == 1 ? "0" : "") + text);
}

/// "30:00" is refused as ambiguous: it could be minutes or hours.
std::optional<double> milliseconds_of(const std::string& text) {
  if (const auto clock = read_clock(text)) return static_cast<double>(clock->value()->count());
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  if (!read_number(std::string_view(text).substr(0, digits), number)) return {};
  const double factor = factor_of(std::string_view(text).substr(digits));
  return factor == 0 ? std::nullopt : std::optional(number * factor);
}

}  // namespace

std::string Value<bool>::read(const std::string& text, bool& value) {
  const auto read = read_bool(text);
  if (read) value = *read;
  return read ? "" : "true or false";
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
  // A line keeps quotes that a list item may need; see options_text.h.
  value = word && list_item(*word) == text ? *word : text;
  return "";
}
std::string Value<std::string>::write(const std::string& value) { return value; }

std::string Value<std::chrono::milliseconds>::read(const std::string& text, std::chrono::milliseconds& value) {
  const auto time = milliseconds_of(text);
  if (!time || *time > 1e15) return "a duration such as 30 (seconds), 250ms, 5min, 2h or 0:30:00";
  value = std::chrono::milliseconds(static_cast<int64_t>(*time));
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
  return joined_by(",", value, list_item);
}

namespace {

std::vector<std::string> names_of(const std::vector<Description>& table) {
  std::vector<std::string> names;
  for (const auto& option : table)
    if (!option.code_only) names.push_back(option.name);
  return names;
}

void require_known(const std::vector<Description>& table, const std::string& section, const RawOptions& texts) {
  for (const auto& [key, found] : texts)
    if (const auto* option = find_option(table, key); !option || option->code_only)
      throw ConfigError("MU001", found.place + ": unknown option '" + key + "'" +
                                     (section.empty() ? "" : " in section '" + section + "'") +
                                     known_names(key, names_of(table)));
}

std::optional<Found> find_in(const RawOptions& texts, const Description& option) {
  const auto found = texts.find(option.name);
  return found == texts.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Found> find_variable(const Environment& variables, const std::string& name) {
  const auto text = name.empty() ? std::nullopt : variables.find(name);
  if (!text) return {};
  return Found{*text, "variable " + name};
}

std::optional<Found> find_one(const Description& option, const RawOptions& in_file, const Sources& sources) {
  if (const auto flag = sources.flags.find(option.name); flag != sources.flags.end())
    return Found{flag->second, "flag " + option.flag()};
  for (const auto* line : {&sources.flag_line, &sources.line})
    if (auto found = find_in(*line, option)) return found;
  if (auto found = find_variable(sources.variables, option.variable)) return found;
  if (auto found = find_in(in_file, option)) return found;
  for (const auto& name : option.other_tools)
    if (auto found = find_variable(sources.variables, name)) return found;
  return {};
}

}  // namespace

std::string Description::flag() const {
  std::string result = "--" + name;
  std::ranges::replace_if(
      result, [](char c) { return c == '_' || c == '.'; }, '-');
  return result;
}

bool Description::is_named(std::string_view word) const {
  return name == word || std::ranges::find(aliases, word) != aliases.end();
}

const Description* find_option(const std::vector<Description>& table, std::string_view name) {
  const auto found = std::ranges::find_if(table, [&](const auto& option) { return option.is_named(name); });
  return found == table.end() ? nullptr : &*found;
}

RawOptions without_aliases(const std::vector<Description>& table, const RawOptions& texts) {
  auto result = texts;
  for (const auto& option : table)
    for (const auto& alias : option.aliases) {
      auto key = option.code_only ? RawOptions::node_type() : result.extract(alias);
      if (key.empty()) continue;
      key.key() = option.name;
      if (const auto added = result.insert(std::move(key)); !added.inserted)
        throw ConfigError("MU305", added.node.mapped().place + " ('" + alias + "') and " +
                                       added.position->second.place + " both set option '" + option.name +
                                       "'; keep one of them");
    }
  return result;
}

RawOptions find(const std::vector<Description>& table, const std::string& section, const Sources& sources) {
  require_known(table, section, sources.file.section(section));
  const auto in_file = without_aliases(table, sources.file.section(section));
  auto plain = sources;
  for (auto* line : {&plain.flag_line, &plain.line}) {
    require_known(table, "", *line);
    *line = without_aliases(table, *line);
  }
  RawOptions result;
  for (const auto& option : table)
    if (auto found = option.code_only ? std::nullopt : find_one(option, in_file, plain)) {
      if (found->is_list && option.type == Value<std::string>::kType && !option.takes_list)
        refuse(option, *found, "one text and no list");
      result[option.name] = std::move(*found);
    }
  return result;
}

bool is_default(const Description& option, const std::string& text) {
  const bool may_be_boolean = option.type.find("true") != std::string::npos;
  return may_be_boolean ? say_the_same(text, option.default_text) : text == option.default_text;
}

void refuse(const Description& option, const Found& found, const std::string& wanted) {
  throw ConfigError("MU002", found.place + ": option '" + option.name + "' is '" + found.text + "', but " + wanted +
                                 " is wanted" + (option.unit.empty() ? "" : " (" + option.unit + ")") +
                                 ": correct it there");
}

void contradict(const Description& option, const std::string& in_code, const Found& found) {
  throw ConfigError("MU171", "the program asks for " + option.name + " '" + in_code + "' and the launcher, by the " +
                                 found.place + ", for '" + found.text + "'; drop one of them");
}

}  // namespace muster::options
