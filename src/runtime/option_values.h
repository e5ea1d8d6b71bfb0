#pragma once

#include <optional>
#include <string>

#include "base/read_bool.h"
#include "base/word_value.h"
#include "muster/base/detail/options.h"
#include "muster/runtime/options.h"

/// Conversions to and from text for types that only RuntimeOptions has.
namespace muster::options {

template <>
struct Value<Precision> {
  static constexpr const char* kType = "precision";
  static std::string read(const std::string& text, Precision& value) {
    value = Precision::parse(text);
    return "";
  }
  static std::string write(const Precision& value) { return std::string(value.name()); }
};

template <>
struct Value<KeepMemory> {
  static constexpr const char* kType = "one of auto, on, off";
  static std::string read(const std::string& text, KeepMemory& value) {
    const auto on = read_bool(text);
    value = KeepMemory::parse(!on ? text : *on ? "on" : "off");
    return "";
  }
  static std::string write(const KeepMemory& value) { return std::string(value.name()); }
};

/// A custom precision can only be given in code.
template <>
struct Value<DeviceBackend> {
  static constexpr const char* kType = "auto, none, or a name or path";
  static std::string read(const std::string& text, DeviceBackend& value) {
    if (text.empty()) return kType;
    value = DeviceBackend(text);
    return "";
  }
  static std::string write(const DeviceBackend& value) { return value.name(); }
};

/// The options of the strategy are separate, under "ddp." and "fsdp.".
template <>
struct Value<Strategy> {
  static constexpr const char* kType = "strategy";
  static std::string read(const std::string& text, Strategy& value) {
    value = Strategy::parse(text);
    return "";
  }
  static std::string write(const Strategy& value) { return std::string(value.name()); }
};

/// An unset value means "auto".
template <>
struct Value<std::optional<Devices>> {
  static constexpr const char* kType = "count, list or auto";
  static std::string read(const std::string& text, std::optional<Devices>& value) {
    value = Devices(text);
    return "";
  }
  static std::string write(const std::optional<Devices>& value) { return value ? value->text() : "auto"; }
};

template <>
struct Value<std::optional<bool>> {
  static constexpr const char* kType = "true, false or auto";
  static std::string read(const std::string& text, std::optional<bool>& value) {
    bool given = false;
    if (text == "auto") value.reset();
    else if (Value<bool>::read(text, given).empty()) value = given;
    else return kType;
    return "";
  }
  static std::string write(const std::optional<bool>& value) { return value ? Value<bool>::write(*value) : "auto"; }
};

template <>
struct Value<Deterministic> {
  static constexpr const char* kType = "true, false or warn";
  static constexpr bool kIsSwitch = true;
  static std::string read(const std::string& text, Deterministic& value) {
    bool on = false;
    if (text == "warn") value = Deterministic::warn();
    else if (Value<bool>::read(text, on).empty()) value = on;
    else return kType;
    return "";
  }
  static std::string write(const Deterministic& value) {
    return value.warns() ? "warn" : Value<bool>::write(static_cast<bool>(value));
  }
};

template <>
struct Value<MatmulPrecision> : WordValue<runtime::MatmulPrecisionWords> {};

template <>
struct Value<GradientWeighting> {
  static constexpr const char* kType = "one of fixed, mean, sum";
  static std::string read(const std::string& text, GradientWeighting& value) {
    for (const auto one : {GradientWeighting::fixed, GradientWeighting::mean, GradientWeighting::sum})
      if (write(one) == text) {
        value = one;
        return "";
      }
    return kType;
  }
  static std::string write(const GradientWeighting& value) {
    return value == GradientWeighting::fixed ? "fixed" : value == GradientWeighting::mean ? "mean" : "sum";
  }
};

}  // namespace muster::options
