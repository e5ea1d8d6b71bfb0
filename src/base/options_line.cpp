#include "base/options_line.h"

#include <cctype>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/options_list.h"
#include "base/trimmed.h"
#include "muster/base/error.h"

namespace muster::options {
namespace {

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

std::string variable_of(const std::string& name) {
  std::string result = "MUSTER_";
  for (const char c : name) result += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
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
      throw ConfigError(error, "'" + word + "' in the " + place + ", '" + text + "', is no name=value");
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
    try {
      static_cast<void>(line[name].dump());
    } catch (const nlohmann::json::type_error&) {
      throw ConfigError("MU308", found.place + ": the text of option '" + name +
                                     "' is no UTF-8, so it cannot be passed on to the ranks; write it in UTF-8");
    }
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

}  // namespace muster::options
