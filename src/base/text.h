#pragma once  // for other rooms

#include <algorithm>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

/// Text that people read and write, and random text. In messages: lists, names from outside, quantities.
namespace muster {

/// Length at which a message cuts a list of names that come from outside, in bytes.
inline constexpr std::size_t kMostListed = 2000;

/// The entries of a range with the separator between them. `word_of` converts an entry to text or to an integer. A list
/// longer than `most` bytes is cut and ends with the separator and "...".
template <class Range, class WordOf = std::identity>
std::string joined_by(std::string_view separator, const Range& range, WordOf&& word_of = {},
                      std::size_t most = std::numeric_limits<std::size_t>::max()) {
  std::string text;
  bool first = true;
  for (const auto& entry : range) {
    if (!std::exchange(first, false)) text += separator;
    if (text.size() > most) return text + "...";
    const auto& word = std::invoke(word_of, entry);
    if constexpr (std::integral<std::remove_cvref_t<decltype(word)>>) text += std::to_string(word);
    else text += std::string_view(word);
  }
  return text;
}

/// "a, b, c": the entries of a range, for a message.
template <class Range, class WordOf = std::identity>
std::string joined(const Range& range, WordOf&& word_of = {},
                   std::size_t most = std::numeric_limits<std::size_t>::max()) {
  return joined_by(", ", range, std::forward<WordOf>(word_of), most);
}

/// As joined(), but "none" for an empty range.
template <class Range, class WordOf = std::identity>
std::string listed(const Range& range, WordOf&& word_of = {}, std::size_t most = kMostListed) {
  auto text = joined(range, std::forward<WordOf>(word_of), most);
  return text.empty() ? "none" : text;
}

/// "; the known ones are a, b, c": the end of a message about an unknown name.
template <class Range, class WordOf = std::identity>
std::string known_ones(const Range& range, WordOf&& word_of = {}) {
  return "; the known ones are " + listed(range, std::forward<WordOf>(word_of));
}

/// Sizes in brackets: "[2, 3]".
template <class Sizes>
std::string shape_text(const Sizes& sizes) {
  return "[" + joined(sizes) + "]";
}

/// Number of names that first_names() shows.
inline constexpr std::size_t kNamesShown = 10;

/// "a, b and 3 more": the first names of a range, for a message. `name_of` converts an entry to text.
template <class Range, class NameOf = std::identity>
std::string first_names(const Range& range, NameOf&& name_of = {}) {
  const std::size_t count = std::size(range);
  const auto begin = std::begin(range);
  const auto end = std::next(begin, static_cast<std::ptrdiff_t>(std::min(count, kNamesShown)));
  const auto text = joined(std::ranges::subrange(begin, end), name_of);
  return count > kNamesShown ? text + " and " + std::to_string(count - kNamesShown) + " more" : text;
}

/// The name in single quotes.
inline std::string quoted(std::string_view name) { return "'" + std::string(name) + "'"; }

/// The name that `word` is most likely a misspelling of; "" if none is near. Case, '-' and '_' make no difference.
std::string nearest_name(std::string_view word, const std::vector<std::string>& known);

/// The end of a message about an unknown name: "; nearest is 'devices'; the known ones are accelerator, devices", or
/// only the latter.
std::string known_names(std::string_view word, const std::vector<std::string>& known);

/// Length at which a message cuts a name that came from outside, in bytes.
inline constexpr std::size_t kMostShown = 120;

/// Text that came from outside (a file, another rank), made safe for a message or a terminal. Anything that could
/// control a terminal or hide or reorder text is escaped: control characters, line ends, direction marks, bytes that
/// are not UTF-8. Backslashes are escaped too, so that no text can imitate an escape. Text longer than `most` is cut at
/// a whole character and ends with "...".
std::string shown(std::string_view text, std::size_t most = kMostShown);
/// The text of shown() in single quotes.
std::string in_quotes(std::string_view text, std::size_t most = kMostShown);

/// Whether the text is well-formed UTF-8.
bool is_utf8(std::string_view text);

/// A size in bytes as text: "900 B", "8.2 KiB", "264.1 MiB".
std::string size_text(std::uint64_t bytes);
/// A time in seconds as text: "1.5 s".
std::string seconds_text(std::chrono::duration<double> time);
/// A number with its noun: "1 rank", "2 ranks".
std::string counted(std::int64_t count, std::string_view what);

/// Message text for a thrown object that is not a std::exception.
inline constexpr const char* kNoStdException = "an exception that is not a std::exception";

// In options, files and variables: words, booleans and numbers.

/// The text with its ASCII letters in lower case.
std::string lower_case(std::string text);
/// The text with its ASCII letters in upper case.
std::string upper_case(std::string text);

/// The text without these characters at its beginning and end; a view into it.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\n");

/// The parts of a text between marks. A mark at the end begins no part, as it ends a line.
std::vector<std::string> split_text(std::string_view text, char mark);

/// The bytes as hexadecimal digits in lower case.
std::string hex_text(std::string_view bytes);
/// The bytes that these digits stand for; nullopt for other text.
std::optional<std::string> bytes_of_hex(std::string_view digits);

/// `bytes` bytes from the system's random generator, as twice as many hexadecimal digits. They are unpredictable.
/// Throws: std::system_error if the system has no generator.
std::string random_hex(std::size_t bytes);

/// A word of lowercase letters and digits for the name of a file, a folder or a job. Throws: as random_hex().
std::string random_word(std::size_t letters = 8);

/// The number that the whole text is, without blanks or a plus sign; nullopt for any other text.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The only parser of booleans, for options, files and variables alike: true, yes, on, 1, y, t; false, no, off, 0, n,
/// f; in any case. These are the words of YAML 1.1 and of Accelerate. nullopt for any other text.
std::optional<bool> read_bool(std::string_view text);

/// Whether both texts are equal, or mean the same boolean.
bool say_the_same(std::string_view one, std::string_view other);

}  // namespace muster
