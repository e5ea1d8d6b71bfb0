#include "text.h"

#include <sys/random.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "muster/base/format.h"
#include "muster/base/word.h"

namespace muster {

// No program calls this, but some compilers emit the call.
void this_is_none_of_the_known_words() { std::abort(); }

namespace {

std::string plain(std::string_view word) {
  std::string result;
  for (const char c : word) result += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// The edit distance: how many letters to insert, remove or replace.
std::size_t letters_between(const std::string& from, const std::string& to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const auto replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({replaced, row[j + 1] + 1, row[j] + 1}));
    }
  }
  return row.back();
}

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& known) {
  const auto wanted = plain(word);
  std::string nearest;
  auto least = wanted.size() / 3 + 2;
  for (const auto& name : known)
    if (const auto letters = letters_between(wanted, plain(name)); letters < least) {
      least = letters;
      nearest = name;
    }
  return nearest;
}

std::string known_names(std::string_view word, const std::vector<std::string>& known) {
  const auto nearest = nearest_name(word, known);
  return (nearest.empty() ? "" : "; nearest is '" + nearest + "'") + known_ones(known);
}

namespace {

/// One character of UTF-8, or one byte that is not part of one.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
  bool valid = true;
};

Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {.code = first};
  const std::size_t bytes = first >= 0xf0 && first < 0xf5   ? 4
                            : first >= 0xe0 && first < 0xf0 ? 3
                            : first >= 0xc2 && first < 0xe0 ? 2
                                                            : 0;
  const Character invalid{.code = first, .bytes = 1, .valid = false};
  if (bytes == 0 || at + bytes > text.size()) return invalid;
  std::uint32_t code = first & (0x7f >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return invalid;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return invalid;
  return {.code = code, .bytes = bytes};
}

/// Control characters (C0 and C1), line ends, invisible marks, and marks that change the direction of text.
bool misleads(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0xad || code == 0x61c ||
         (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2060 && code <= 0x206f) || code == 0xfeff || code >= 0xe0000;
}

std::string escaped(const Character& character) {
  if (character.code == '\\') return "\\\\";
  if (character.code == '\n') return "\\n";
  if (character.code == '\t') return "\\t";
  char text[16];
  const bool byte = !character.valid || character.code < 0x80;
  std::snprintf(text, sizeof text, byte ? "\\x%02x" : "\\u{%x}", static_cast<unsigned>(character.code));
  return text;
}

}  // namespace

std::string shown(std::string_view text, std::size_t most) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool plain = character.valid && !misleads(character.code) && character.code != '\\';
    const std::string part = plain ? std::string(text.substr(at, character.bytes)) : escaped(character);
    if (result.size() + part.size() > most) return result + "...";
    result += part;
    at += character.bytes;
  }
  return result;
}

std::string in_quotes(std::string_view text, std::size_t most) { return "'" + shown(text, most) + "'"; }

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto character = character_at(text, at);
    if (!character.valid) return false;
    at += character.bytes;
  }
  return true;
}

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return formatted("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return formatted("{:.1f} {}", value, kUnits[unit]);
}

std::string seconds_text(std::chrono::duration<double> time) { return formatted("{:.1f} s", time.count()); }

std::string counted(std::int64_t count, std::string_view what) {
  return formatted("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const auto first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string hex_text(std::string_view bytes) {
  std::string text;
  for (const unsigned char byte : bytes) (text += kHexDigits[byte >> 4]) += kHexDigits[byte & 15];
  return text;
}

std::optional<std::string> bytes_of_hex(std::string_view digits) {
  std::string bytes;
  if (digits.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const auto high = kHexDigits.find(digits[i]), low = kHexDigits.find(digits[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

namespace {

/// Random letters from a number of them that divides 256, so that all are equally likely.
std::string random_text(std::size_t count, std::string_view letters) {
  std::string text(count, '\0');
  for (std::size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(text.data() + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), "the system gives no random bytes");
    done += static_cast<std::size_t>(got);
  }
  for (char& byte : text) byte = letters[static_cast<unsigned char>(byte) % letters.size()];
  return text;
}

}  // namespace

std::string random_hex(std::size_t bytes) { return random_text(2 * bytes, "0123456789abcdef"); }

std::string random_word(std::size_t letters) { return random_text(letters, "abcdefghijkmnpqrstuvwxyz23456789"); }

std::vector<std::string> split_text(std::string_view text, char mark) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto& part = parts.emplace_back(text.substr(0, text.find(mark)));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
  }
  return parts;
}

std::optional<bool> read_bool(std::string_view text) {
  const auto word = lower_case(std::string(text));
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is_one_of({"true", "yes", "on", "1", "y", "t"})) return true;
  if (is_one_of({"false", "no", "off", "0", "n", "f"})) return false;
  return {};
}

bool say_the_same(std::string_view one, std::string_view other) {
  return one == other || (read_bool(one) && read_bool(one) == read_bool(other));
}

}  // namespace muster
