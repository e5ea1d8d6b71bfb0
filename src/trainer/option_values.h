#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/word_value.h"
#include "muster/base/detail/options.h"
#include "muster/trainer/options.h"

/// Conversions to and from text for types that only TrainerOptions has.
namespace muster::options {

template <>
struct Value<std::filesystem::path> {
  static constexpr const char* kType = "path";
  static std::string read(const std::string& text, std::filesystem::path& value) {
    value = text;
    return "";
  }
  static std::string write(const std::filesystem::path& value) { return value.string(); }
};

/// An optional number.
template <class T>
struct OptionalNumber {
  static std::string read(const std::string& text, std::optional<T>& value, const char* wanted) {
    T number{};
    if (text == "none") value.reset();
    else if (Value<T>::read(text, number).empty()) value = number;
    else return wanted;
    return "";
  }
  static std::string write(const std::optional<T>& value) { return value ? Value<T>::write(*value) : "none"; }
};

template <>
struct Value<std::optional<int64_t>> : OptionalNumber<int64_t> {
  static constexpr const char* kType = "whole number or none";
  static std::string read(const std::string& text, std::optional<int64_t>& value) {
    return OptionalNumber::read(text, value, kType);
  }
};

template <>
struct Value<std::optional<double>> : OptionalNumber<double> {
  static constexpr const char* kType = "number or none";
  static std::string read(const std::string& text, std::optional<double>& value) {
    return OptionalNumber::read(text, value, kType);
  }
};

template <>
struct Value<ClipAlgorithm> : WordValue<trainer::ClipWords> {};

/// A number with a decimal point is a fraction, one without it a number of batches.
template <>
struct Value<BatchLimit> {
  static constexpr const char* kType = "batches, or a part such as 0.5";
  static std::string read(const std::string& text, BatchLimit& value) {
    int64_t count = 0;
    double part = 0;
    if (Value<int64_t>::read(text, count).empty()) value = count;
    else if (Value<double>::read(text, part).empty()) value = part;
    else return kType;
    return "";
  }
  static std::string write(const BatchLimit& value) {
    if (const auto* count = value.count()) return Value<int64_t>::write(*count);
    const auto text = Value<double>::write(*value.part());
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
};

template <>
struct Value<TimeSpan> {
  static constexpr const char* kType = "DD:HH:MM:SS, a duration such as 90s, or none";
  static std::string read(const std::string& text, TimeSpan& value) {
    std::chrono::milliseconds duration{};
    if (text == "none") value = {};
    else if (Value<std::chrono::milliseconds>::read(text, duration).empty()) value = duration;
    else return kType;
    return "";
  }
  static std::string write(const TimeSpan& value) { return value.text(); }
};

template <>
struct Value<CheckInterval> {
  static constexpr const char* kType = "batches, a part such as 0.5, or a time: DD:HH:MM:SS or 90s";
  static std::string read(const std::string& text, CheckInterval& value) {
    BatchLimit batches = 1.0;
    TimeSpan time;
    if (Value<BatchLimit>::read(text, batches).empty())
      value = batches.count() ? CheckInterval(*batches.count()) : CheckInterval(*batches.part());
    else if (Value<TimeSpan>::read(text, time).empty() && time) value = time;
    else return kType;
    return "";
  }
  static std::string write(const CheckInterval& value) {
    return value.time() ? value.time().text() : Value<BatchLimit>::write(value);
  }
};

}  // namespace muster::options
