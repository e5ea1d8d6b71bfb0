#include "muster/base/detail/options_line.h"

#include <algorithm>
#include <cctype>

#include <nlohmann/json.hpp>

#include "muster/base/detail/trimmed.h"
#include "muster/base/error.h"

namespace muster::options {

std::string variable_of(const std::string& name) {
  std::string result = "MUSTER_";
  for (const char c : name) result += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

Texts split_pairs(const std::string& text, const std::string& place, const std::string& prefix, const char* error) {
  Texts texts;
  std::string name;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const std::string word(trimmed(std::string_view(text).substr(begin, end - begin)));
    const auto sign = word.find('=');
    begin = end + 1;
    if (word.empty() && begin > text.size() && !name.empty()) break;  // a comma at the end
    if (sign != std::string::npos && sign > 0) {
      name = prefix + word.substr(0, sign);
      texts[name] = {word.substr(sign + 1), word.substr(0, sign) + " of the " + place};
    } else if (!name.empty() && sign == std::string::npos) {
      texts[name].text += "," + word;
    } else {
      throw ConfigError(error, "'" + word + "' in the " + place + ", '" + text + "', is no name=value");
    }
  }
  return texts;
}

Texts read_line(const std::string& line, const std::string& place) {
  const auto first = line.find_first_not_of(" \t\n");
  if (first == std::string::npos) return {};
  if (line[first] != '{') return split_pairs(line, place);
  Texts texts;
  const auto file = File::parse(line, place);
  for (const auto& section : file.sections())
    for (const auto& [key, found] : file.section(section))
      texts[section.empty() ? key : section + "." + key] = {found.text, key + " of the " + place};
  return texts;
}

std::string write_line(const Texts& texts) {
  if (texts.empty()) return "";
  nlohmann::json line;
  for (const auto& [name, found] : texts) line[name] = found.text;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void expand(Texts& texts, const std::string& name, const char* error) {
  const auto found = texts.find(name);
  if (found == texts.end()) return;
  const auto text = found->second;
  texts.erase(found);
  if (!text.text.empty()) texts.merge(split_pairs(text.text, text.place, name + ".", error));
}

}  // namespace muster::options
