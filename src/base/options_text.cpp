#include "base/options_text.h"

#include <cctype>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

/// The position after the closing quote that matches the quote at `at`; npos if there is none.
size_t end_of_quotes(std::string_view text, size_t at) {
  for (++at; (at = text.find('"', at)) != std::string_view::npos; at += 2)
    if (text.substr(at + 1, 1) != "\"") return at + 1;
  return at;
}

/// The position at which a quote may open in the item that begins at `begin`.
size_t start_of_value(std::string_view text, size_t begin, bool in_pairs) {
  const auto first = text.find_first_not_of(" \t\n", begin);
  if (first == std::string_view::npos || !in_pairs || text[first] == '"') return first;
  const auto sign = text.find_first_of("=,", first);
  if (sign == std::string_view::npos || text[sign] == ',') return first;
  return text.find_first_not_of(" \t\n", sign + 1);
}

constexpr const char* kPlaces = "set_by";  // JSON key under which a line says where its values were set

/// `found.place` is the option's name in `place`.
void add(RawOptions& texts, const std::string& name, const Found& found, const std::string& place) {
  if (!texts.emplace(name, Found{found.text, found.place + " of the " + place}).second)
    throw ConfigError("MU305", "the " + place + " sets '" + found.place + "' twice; keep one of them");
}

/// Keeps quotes around an item of a list that needs them.
std::string without_needless_quotes(std::string_view value) {
  const auto word = unquoted(value);
  return word && list_item(*word) == *word ? *word : std::string(value);
}

}  // namespace

std::vector<std::string> split_items(std::string_view text, bool in_pairs) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    auto from = start_of_value(text, begin, in_pairs);
    if (from != std::string_view::npos && text[from] == '"') from = end_of_quotes(text, from);
    else if (from != std::string_view::npos) from = begin;
    const auto end = from == std::string_view::npos ? text.size() : std::min(text.find(',', from), text.size());
    items.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return items;
}

std::optional<std::string> unquoted(std::string_view item) {
  if (!item.starts_with('"')) return std::string(item);
  if (end_of_quotes(item, 0) != item.size()) return {};
  std::string result;
  for (size_t at = 1; at + 1 < item.size(); ++at) {
    result += item[at];
    if (item[at] == '"') ++at;
  }
  return result;
}

std::string list_item(std::string_view item) {
  const bool as_it_is = !item.empty() && !item.starts_with('"') && item.find(',') == std::string_view::npos &&
                        trimmed(item).size() == item.size();
  if (as_it_is) return std::string(item);
  std::string result = "\"";
  for (const char c : item) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

std::string variable_of(const std::string& name) {
  std::string result = "MUSTER_";
  for (const char c : name) result += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

std::string name_of_flag(const std::string& flag) {
  auto name = flag.substr(0, flag.find('='));
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

RawOptions split_pairs(const std::string& text, const std::string& place, const std::string& prefix,
                       const char* error) {
  RawOptions texts;
  std::string name;
  auto words = split_items(text, true);
  if (words.size() > 1 && words.back().empty()) words.pop_back();  // a comma at the end
  for (const auto& word : words) {
    const auto sign = word.starts_with('"') ? std::string::npos : word.find('=');
    const auto value = trimmed(std::string_view(word).substr(sign == std::string::npos ? 0 : sign + 1));
    if (value.starts_with('"') && !unquoted(value))
      throw ConfigError(error, std::string(value) + " in the " + place + " does not end with its closing quote");
    if (sign != std::string::npos && sign > 0) {
      const auto own = std::string(trimmed(std::string_view(word).substr(0, sign)));
      name = prefix + own;
      add(texts, name, {without_needless_quotes(value), own}, place);
    } else if (!name.empty() && sign == std::string::npos) {
      texts[name].text += "," + word;
    } else {
      throw ConfigError(error, "'" + word + "' in the " + place + ", '" + text + "', is not of the form name=value");
    }
  }
  return texts;
}

RawOptions read_line(const std::string& line, const std::string& place) {
  const auto first = line.find_first_not_of(" \t\n");
  if (first == std::string::npos) return {};
  if (line[first] != '{') return split_pairs(line, place);
  RawOptions texts;
  const auto file = File::parse(line, place);
  for (const auto& section : file.sections())
    for (const auto& [key, found] : file.section(section))
      if (section != kPlaces) add(texts, section.empty() ? key : section + "." + key, {found.text, key}, place);
  for (const auto& [key, found] : file.section(kPlaces))
    if (const auto text = texts.find(key); text != texts.end()) text->second.place = found.text;
  return texts;
}

std::string write_line(const RawOptions& texts) {
  if (texts.empty()) return "";
  nlohmann::json line, places;
  for (const auto& [name, found] : texts) {
    line[name] = found.text;
    if (!found.place.empty()) places[name] = found.place;
    if (!is_utf8(found.text))
      throw ConfigError("MU308", found.place + ": the text of option '" + name +
                                     "' is not UTF-8, so it cannot be passed on to the ranks; write it in UTF-8");
  }
  if (!places.empty()) line[kPlaces] = places;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void expand(RawOptions& texts, const std::string& name, const std::vector<Description>& table, const char* error) {
  const auto found = texts.find(name);
  if (found == texts.end()) return;
  const auto text = found->second;
  texts.erase(found);
  if (!text.text.empty()) texts.merge(without_aliases(table, split_pairs(text.text, text.place, name + ".", error)));
}

namespace {

std::string code(const std::string& text) { return text.empty() ? "–" : "`" + text + "`"; }

std::string flags_of(const Description& option) {
  if (option.code_only) return "code only";
  return code(option.flag()) + (option.is_switch ? ", `--no-" + option.flag().substr(2) + "`" : "");
}

std::string names_of(const Description& option) {
  auto names = code(option.name);
  for (const auto& alias : option.aliases) names += ", " + code(alias);
  return names;
}

std::string variables_of(const Description& option) {
  std::string names = option.variable.empty() ? "" : code(option.variable);
  for (const auto& name : option.other_tools) names += (names.empty() ? "" : ", ") + code(name);
  return names.empty() ? "–" : names;
}

std::string type_of(const Description& option) {
  if (option.unit.empty() || option.unit == option.type) return option.type.empty() ? "–" : option.type;
  return option.type + " (" + option.unit + ")";
}

}  // namespace

std::string to_markdown(const std::vector<Description>& table) {
  std::string result = "| name | flag | variables | type | default | meaning |\n|---|---|---|---|---|---|\n";
  for (const auto& option : table)
    result += "| " + names_of(option) + " | " + flags_of(option) + " | " + variables_of(option) + " | " +
              type_of(option) + " | " + code(option.default_text) + " | " + option.help + " |\n";
  return result;
}

}  // namespace muster::options
