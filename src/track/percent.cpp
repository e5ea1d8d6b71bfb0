#include "percent.h"

#include <cctype>
#include <charconv>

namespace muster::track {

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 128 && (std::isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~');
    if (plain || (keep_slashes && c == '/')) result += c;
    else (result += '%') += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return result;
}

std::string percent_decoded(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned byte = 0;
    const auto* digits = text.data() + at + 1;
    if (text[at] == '%' && at + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      result += static_cast<char>(byte);
      at += 2;
    } else {
      result += text[at];
    }
  }
  return result;
}

}  // namespace muster::track
