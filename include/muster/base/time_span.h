#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

[[noreturn]] void this_is_no_time_span_of_days_hours_minutes_seconds();

/// A length of time, or none: a std::chrono duration, or "DD:HH:MM:SS". The compiler checks literals; use parse() for
/// text that is known only at run time.
class TimeSpan {
 public:
  using Value = std::optional<std::chrono::milliseconds>;
  constexpr TimeSpan() = default;  ///< none
  template <class Count, class Period>
  constexpr TimeSpan(std::chrono::duration<Count, Period> time)  // NOLINT(google-explicit-constructor)
      : value_(std::chrono::duration_cast<std::chrono::milliseconds>(time)) {}
  consteval TimeSpan(const char* text) : value_(literal(text)) {}  // NOLINT(google-explicit-constructor)

  /// The time; std::nullopt for a text that is not "DD:HH:MM:SS".
  static constexpr std::optional<TimeSpan> parse(std::string_view text) {
    const auto days = text.find(':');
    if (days == 0 || days > 6 || text.size() != days + 9) return std::nullopt;
    constexpr int64_t kSeconds[] = {3600, 60, 1};
    int64_t seconds = 0;
    if (!add(text.substr(0, days), 86400, seconds)) return std::nullopt;
    for (std::size_t i = 0; i < 3; ++i)
      if (text[days + 3 * i] != ':' || !add(text.substr(days + 3 * i + 1, 2), kSeconds[i], seconds))
        return std::nullopt;
    return TimeSpan(std::chrono::seconds(seconds));
  }
  constexpr const Value& value() const noexcept { return value_; }
  constexpr explicit operator bool() const noexcept { return value_.has_value(); }
  /// The time as "DD:HH:MM:SS", rounded down to seconds; "none" if it is not set. Requires: it is not negative.
  std::string text() const {
    if (!value_) return "none";
    const int64_t all = std::chrono::duration_cast<std::chrono::seconds>(*value_).count();
    const auto two = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
    return two(all / 86400) + ":" + two(all / 3600 % 24) + ":" + two(all / 60 % 60) + ":" + two(all % 60);
  }
  friend constexpr bool operator==(const TimeSpan&, const TimeSpan&) = default;

 private:
  static constexpr bool add(std::string_view digits, int64_t factor, int64_t& seconds) {
    int64_t number = 0;
    for (const char digit : digits) {
      if (digit < '0' || digit > '9') return false;
      number = 10 * number + (digit - '0');
    }
    seconds += factor * number;
    return true;
  }
  static consteval Value literal(const char* text) {
    if (const auto time = parse(text)) return time->value_;
    this_is_no_time_span_of_days_hours_minutes_seconds();  // not constexpr: an invalid literal does not compile
  }
  Value value_ = {};
};

}  // namespace muster
