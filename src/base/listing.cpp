#include "listing.h"

#include <cctype>
#include <cstdlib>
#include <numeric>

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

}  // namespace muster
