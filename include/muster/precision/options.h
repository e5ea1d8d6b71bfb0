#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

enum class PrecisionKind { f32_true, f64_true, bf16_true, bf16_mixed, f16_true, f16_mixed };

/// Dynamic loss scaling under "16-mixed": losses are multiplied by a scale before backward, so that small gradients
/// survive in float16, and gradients are divided by it before the step.
struct GradScalerOptions {
  double backoff_factor = 0.5;  ///< the scale is multiplied by this after gradients that are not finite
  bool enabled = true;          ///< off: losses are not scaled, and gradients that are not finite skip no step
  double growth_factor = 2.0;   ///< and by this after growth_interval steps in a row with finite gradients
  int64_t growth_interval = 2000;
  double init_scale = 65536.0;
};

/// The state of a loss scale, to be saved and loaded.
struct GradScalerState {
  int64_t growth_tracker = 0;  ///< steps in a row with finite gradients
  double scale = 1.0;
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

namespace precision {
/// An accepted name of a precision.
struct PrecisionName {
  std::string_view name;
  PrecisionKind kind;
};
/// All accepted names; the first of each kind is the one that is printed.
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

constexpr PrecisionKind kind_named(std::string_view name) {
  for (const auto& known : kPrecisionNames)
    if (known.name == name) return known.kind;
  unknown_precision(name);  // not constexpr: a literal that names no precision does not compile
}

constexpr PrecisionKind kind_of_bits(int bits) {
  if (bits == 16) return PrecisionKind::f16_mixed;
  if (bits == 32) return PrecisionKind::f32_true;
  if (bits == 64) return PrecisionKind::f64_true;
  a_number_for_a_precision_is_16_32_or_64(bits);
}
}  // namespace precision

/// The dtypes of parameters and of computation, by name: "32-true" (also "no"), "64-true", "bf16-true", "16-true",
/// "bf16-mixed" (also "bf16") and "16-mixed" (also "fp16"): parameters stay float32, forward runs under autocast, and
/// "16-mixed" scales losses. Numbers are Lightning's: 16 is "16-mixed", 32 "32-true", 64 "64-true".
/// A literal is checked by the compiler; names and numbers known only at run time go through parse().
class Precision {
 public:
  consteval Precision(const char* name) : kind_(precision::kind_named(name)) {}
  consteval Precision(int bits) : kind_(precision::kind_of_bits(bits)) {}
  /// Throws: ConfigError (MU130) for an unknown name, listing the known ones.
  static Precision parse(std::string_view name) { return Precision(precision::kind_named(name)); }
  /// Throws: ConfigError (MU130) for another number than 16, 32 and 64.
  static Precision parse(int bits) { return Precision(precision::kind_of_bits(bits)); }

  constexpr PrecisionKind kind() const noexcept { return kind_; }
  constexpr std::string_view name() const noexcept {
    for (const auto& known : precision::kPrecisionNames)
      if (known.kind == kind_) return known.name;
    return "";
  }
  friend constexpr bool operator==(Precision, Precision) = default;

 private:
  constexpr explicit Precision(PrecisionKind kind) : kind_(kind) {}
  PrecisionKind kind_;
};

}  // namespace muster
