#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace muster {

class PrecisionPlugin;

enum class PrecisionKind { f32_true, f64_true, bf16_true, bf16_mixed, f16_true, f16_mixed, custom };

/// Dynamic loss scaling under "16-mixed": losses are multiplied by a scale before backward, so that small gradients
/// survive in float16, and gradients are divided by it before the step. The defaults are those of PyTorch's GradScaler.
struct GradScalerOptions {
  double backoff_factor = 0.5;  ///< the scale is multiplied by this after gradients that are not finite
  bool enabled = true;          ///< off: losses are not scaled, and non-finite gradients do not skip a step
  double growth_factor = 2.0;   ///< and by this after growth_interval steps in a row with finite gradients
  int64_t growth_interval = 2000;
  double init_scale = 65536.0;
};

/// at::ScalarType, recognised by its enumerators, since headers of options do not include Torch.
template <class T>
concept TorchDtype = std::is_enum_v<T> && requires { T::BFloat16 != T::Double&& T::Float != T::Half; };

/// The dtype of an option, by name or as an at::ScalarType: "bf16", torch::kBFloat16. Names are checked where the
/// option is used.
class DtypeName {
 public:
  DtypeName(const char* name) : text_(name) {}
  DtypeName(std::string name) : text_(std::move(name)) {}
  /// A dtype other than torch::kBFloat16, kDouble, kFloat and kHalf gets a name that no option knows.
  template <TorchDtype T>
  DtypeName(T dtype)
      : text_(dtype == T::BFloat16 ? "bf16"
              : dtype == T::Double ? "f64"
              : dtype == T::Float  ? "f32"
              : dtype == T::Half   ? "f16"
                                   : "ScalarType " + std::to_string(static_cast<int>(dtype))) {}

  bool empty() const noexcept { return text_.empty(); }
  const std::string& text() const noexcept { return text_; }
  friend bool operator==(const DtypeName&, const DtypeName&) = default;

 private:
  std::string text_;
};

namespace precision {
/// A shared pointer that may be empty in a constant expression, in which a std::shared_ptr cannot be destroyed.
class PluginPointer {
 public:
  constexpr PluginPointer() noexcept = default;
  explicit PluginPointer(std::shared_ptr<PrecisionPlugin> own) : own_(new std::shared_ptr(std::move(own))) {}
  constexpr PluginPointer(const PluginPointer& other) : own_(other.own_ ? new std::shared_ptr(*other.own_) : nullptr) {}
  constexpr PluginPointer& operator=(PluginPointer other) noexcept { return std::swap(own_, other.own_), *this; }
  constexpr ~PluginPointer() { delete own_; }
  constexpr PrecisionPlugin* get() const noexcept { return own_ ? own_->get() : nullptr; }
  friend constexpr bool operator==(const PluginPointer& a, const PluginPointer& b) { return a.get() == b.get(); }

 private:
  const std::shared_ptr<PrecisionPlugin>* own_ = nullptr;
};

/// An accepted name of a precision.
struct PrecisionName {
  std::string_view name;
  PrecisionKind kind;
};
/// All accepted names; the first name of each kind is printed.
inline constexpr PrecisionName kPrecisionNames[] = {
    {"32-true", PrecisionKind::f32_true},    {"64-true", PrecisionKind::f64_true},
    {"bf16-true", PrecisionKind::bf16_true}, {"bf16-mixed", PrecisionKind::bf16_mixed},
    {"16-true", PrecisionKind::f16_true},    {"16-mixed", PrecisionKind::f16_mixed},
    {"no", PrecisionKind::f32_true},         {"32", PrecisionKind::f32_true},
    {"fp32", PrecisionKind::f32_true},       {"64", PrecisionKind::f64_true},
    {"bf16", PrecisionKind::bf16_mixed},     {"fp16", PrecisionKind::f16_mixed},
    {"16", PrecisionKind::f16_mixed},
};

[[noreturn]] void unknown_precision(std::string_view name);
[[noreturn]] void a_number_for_a_precision_is_16_32_or_64(int bits);

constexpr PrecisionKind kind_of(std::string_view name) {
  for (const auto& known : kPrecisionNames)
    if (known.name == name) return known.kind;
  unknown_precision(name);  // not constexpr: a literal that names no precision does not compile
}

constexpr PrecisionKind kind_of(int bits) {
  if (bits == 16) return PrecisionKind::f16_mixed;
  if (bits == 32) return PrecisionKind::f32_true;
  if (bits == 64) return PrecisionKind::f64_true;
  a_number_for_a_precision_is_16_32_or_64(bits);
}

template <TorchDtype T>
constexpr PrecisionKind kind_of(T dtype) {
  if (dtype == T::BFloat16 || dtype == T::Half) return kind_of(dtype == T::Half ? "16" : "bf16");
  return kind_of(dtype == T::Float ? "32" : dtype == T::Double ? "64" : "another dtype");
}
}  // namespace precision

/// The dtypes of parameters and of computation, by name: "32-true" (also "no"), "64-true", "bf16-true", "16-true",
/// "bf16-mixed" (also "bf16") and "16-mixed" (also "fp16"): parameters stay float32, forward runs under autocast, and
/// "16-mixed" scales losses. Numbers mean what they mean in Lightning, and so do dtypes: 16 and torch::kHalf
/// "16-mixed", kBFloat16 "bf16-mixed", 32 and kFloat "32-true", 64 and kDouble "64-true". The compiler checks literals;
/// use parse() for values that are known only at run time.
class Precision {
 public:
  consteval Precision(const char* name) : kind_(precision::kind_of(name)) {}
  consteval Precision(int bits) : kind_(precision::kind_of(bits)) {}
  template <TorchDtype T>
  consteval Precision(T dtype) : kind_(precision::kind_of(dtype)) {}
  /// A custom policy, std::make_shared<Mine>(); see precision/plugin.h. Any precision that a launcher requests
  /// contradicts it (MU171). Throws: UsageError (MU310) if it is empty, or if its name is empty or that of a built-in
  /// precision.
  Precision(std::shared_ptr<PrecisionPlugin> own);
  template <class P>
    requires std::convertible_to<P*, PrecisionPlugin*>
  Precision(std::shared_ptr<P> own) : Precision(std::shared_ptr<PrecisionPlugin>(std::move(own))) {}
  /// Makes a precision from a name, a number or a dtype. Throws: ConfigError (MU130), listing the known values, for an
  /// unknown one.
  template <class T>
  static Precision parse(const T& given) {
    return Precision(precision::kind_of(given));
  }

  constexpr PrecisionKind kind() const noexcept { return kind_; }
  constexpr const precision::PluginPointer& custom() const noexcept { return custom_; }
  constexpr std::string_view name() const noexcept {
    for (const auto& known : precision::kPrecisionNames)
      if (known.kind == kind_) return known.name;
    return custom_name_;
  }
  friend constexpr bool operator==(const Precision&, const Precision&) = default;

 private:
  constexpr explicit Precision(PrecisionKind kind) : kind_(kind) {}
  PrecisionKind kind_;
  precision::PluginPointer custom_ = {};  // empty unless the kind is custom
  std::string_view custom_name_ = {};
};

}  // namespace muster
