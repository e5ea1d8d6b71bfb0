#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace muster {

[[noreturn]] void this_is_none_of_the_known_words();

/// One word out of a fixed set, for options that Python's libraries take as strings: `.mode = "min"`. The compiler
/// checks literals; use parse() for text that is known only at run time. `Words::kAll` lists the set.
template <class Words>
class Word {
 public:
  consteval Word(const char* text) : text_(find(text)) {}  // NOLINT(google-explicit-constructor)
  /// The word; std::nullopt for any other text.
  static constexpr std::optional<Word> parse(std::string_view text) {
    for (const auto word : Words::kAll)
      if (word == text) return Word(word);
    return std::nullopt;
  }
  static constexpr std::span<const std::string_view> all() noexcept { return Words::kAll; }
  constexpr std::string_view text() const noexcept { return text_; }
  friend constexpr bool operator==(Word a, Word b) noexcept { return a.text_ == b.text_; }

 private:
  constexpr explicit Word(std::string_view text) : text_(text) {}
  static consteval std::string_view find(std::string_view text) {
    for (const auto word : Words::kAll)
      if (word == text) return word;
    this_is_none_of_the_known_words();  // not constexpr: an unknown literal does not compile
  }
  std::string_view text_;
};

}  // namespace muster
