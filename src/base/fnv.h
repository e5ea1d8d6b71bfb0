#pragma once  // for other rooms

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace muster {

/// 64-bit FNV-1a over bytes or, one step each, over wider words: http://www.isthe.com/chongo/tech/comp/fnv.
/// Cheap for a few words; not a cryptographic hash.
class Fnv1a {
 public:
  /// Continues from the hash `before`; 0 starts from the beginning.
  constexpr explicit Fnv1a(uint64_t before = 0) noexcept : value_(before ^ 14695981039346656037ULL) {}

  template <std::integral Word>
  constexpr Fnv1a& add(Word word) noexcept {
    // Converted to unsigned first: the signedness of char differs between the machines of a job.
    value_ = (value_ ^ static_cast<std::make_unsigned_t<Word>>(word)) * 1099511628211ULL;
    return *this;
  }
  template <class Words>
  constexpr Fnv1a& add_all(const Words& words) noexcept {
    for (const auto word : words) add(word);
    return *this;
  }
  constexpr uint64_t value() const noexcept { return value_; }

 private:
  uint64_t value_;
};

}  // namespace muster
