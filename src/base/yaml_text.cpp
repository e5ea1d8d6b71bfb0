#include "base/yaml_text.h"

#include <algorithm>
#include <cctype>

#include "spelling.h"

namespace muster::options {
namespace {

/// YAML readers in Python take these words, unquoted, for a boolean or null.
bool is_word_of_yaml(const std::string& text) {
  const auto word = lower_case(text);
  for (const char* one : {"", "no", "yes", "on", "off", "y", "n", "null", "~"})
    if (word == one) return true;
  return false;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

/// Double quotes, since single quotes would fold line ends.
std::string escaped(const std::string& text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (is_control(c)) result += {'\\', 'x', kDigits[code / 16U], kDigits[code % 16U]};
    else if (c == '"' || c == '\\') result += {'\\', c};
    else result += c;
  }
  return result + '"';
}

}  // namespace

std::string yaml_text(const std::string& text) {
  if (std::any_of(text.begin(), text.end(), is_control)) return escaped(text);
  const bool plain = !is_word_of_yaml(text) && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/' || c == '+';
  });
  const bool number = text.size() > 1 && std::isdigit(static_cast<unsigned char>(text[1]));
  if (plain && ((text.front() != '-' && text.front() != '.') || number)) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

}  // namespace muster::options
