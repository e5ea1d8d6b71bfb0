#pragma once

#include <string>
#include <utility>

#include "muster/precision/options.h"

namespace muster {

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

}  // namespace muster
