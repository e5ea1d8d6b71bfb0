#include <sstream>

#include "base/text.h"
#include "options/words.h"

namespace muster::options {

std::span<const ForeignWord> foreign_words(Place place) {
  const auto of_place = std::ranges::equal_range(foreign_words(), place, {}, &ForeignWord::place);
  return {of_place.begin(), of_place.end()};
}

const ForeignWord* find_foreign_word(Place place, std::string_view word) {
  const auto words = foreign_words(place);
  const auto found = std::ranges::find(words, word, &ForeignWord::word);
  return found == words.end() ? nullptr : &*found;
}

bool asks_for_nothing(const ForeignWord& word, std::string_view value) {
  std::istringstream accepted{std::string(word.accepted)};
  for (std::string one; accepted >> one;)
    if (say_the_same(one, lower_case(std::string(value)))) return true;
  return false;
}

std::string spelling_here(std::string_view flag) {
  const auto* word = find_foreign_word(Place::run, flag);
  if (!word) return "";
  return (word->follow == Follow::ignored ? "nothing: " : "") + std::string(word->text);
}

std::vector<std::string> foreign_variables(const Description& option) {
  std::vector<std::string> names;
  for (const auto& word : foreign_words(Place::variable))
    if (word.follow == Follow::option && option.is_named(word.text)) names.emplace_back(word.word);
  return names;
}

}  // namespace muster::options
