#pragma once  // for other rooms

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster {

/// Length at which a message cuts a list of names that come from outside, in bytes.
inline constexpr std::size_t kMostListed = 2000;

/// "a, b, c": the entries of a range, for a message. `word_of` converts an entry to text or to an integer. A list
/// longer than `most` bytes is cut and ends with ", ...".
template <class Range, class WordOf = std::identity>
std::string joined(const Range& range, WordOf&& word_of = {},
                   std::size_t most = std::numeric_limits<std::size_t>::max()) {
  std::string text;
  bool first = true;
  for (const auto& entry : range) {
    if (!std::exchange(first, false)) text += ", ";
    if (text.size() > most) return text + "...";
    const auto& word = std::invoke(word_of, entry);
    if constexpr (std::integral<std::remove_cvref_t<decltype(word)>>) text += std::to_string(word);
    else text += std::string_view(word);
  }
  return text;
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

}  // namespace muster
