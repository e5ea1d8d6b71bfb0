#pragma once  // for other rooms

#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "muster/base/detail/options.h"
#include "muster/base/word.h"

namespace muster::options {

/// The names as "one of a, b, c", null-terminated.
template <class Words>
consteval auto one_of() {
  constexpr std::string_view kBegin = "one of ", kBetween = ", ";
  constexpr std::size_t kLength = [=] {
    std::size_t sum = kBegin.size() + kBetween.size() * (std::size(Words::kAll) - 1);
    for (const std::string_view word : Words::kAll) sum += word.size();
    return sum;
  }();
  std::array<char, kLength + 1> text{};
  std::size_t end = 0;
  const auto append = [&](std::string_view part) { end += part.copy(text.data() + end, part.size()); };
  for (const std::string_view& word : Words::kAll) {
    append(&word == Words::kAll ? kBegin : kBetween);
    append(word);
  }
  return text;
}

/// The Value specialization for a Word: `template <> struct Value<Mode> : WordValue<ModeWords> {};`.
template <class Words>
struct WordValue {
  static constexpr auto kText = one_of<Words>();
  static constexpr const char* kType = kText.data();
  static std::string read(const std::string& text, Word<Words>& value) {
    const auto word = Word<Words>::parse(text);
    if (word) value = *word;
    return word ? "" : kType;
  }
  static std::string write(const Word<Words>& value) { return std::string(value.text()); }
};

}  // namespace muster::options
