#include <algorithm>
#include <optional>

#include "base/known_names.h"
#include "base/options_default.h"
#include "base/read_bool.h"
#include "muster/base/detail/options.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

std::vector<std::string> names_of(const std::vector<Description>& table) {
  std::vector<std::string> names;
  for (const auto& option : table)
    if (!option.code_only) names.push_back(option.name);
  return names;
}

bool describes(const std::vector<Description>& table, const std::string& key) {
  return std::any_of(table.begin(), table.end(), [&](const Description& option) {
    return !option.code_only && (option.name == key || std::count(option.aliases.begin(), option.aliases.end(), key));
  });
}

void require_known(const std::vector<Description>& table, const std::string& section, const RawOptions& texts) {
  for (const auto& [key, found] : texts)
    if (!describes(table, key))
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
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c == '_' || c == '.'; }, '-');
  return result;
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
