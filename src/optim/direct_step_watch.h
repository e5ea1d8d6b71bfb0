#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "optim/plan.h"

namespace muster::optim {

/// Detects that other code updated the parameters after a backward.
/// Why: docs/decisions/0012-steps-are-seen-not-trapped.md.
class DirectStepWatch {
 public:
  /// `values`: also remember some values, since LibTorch's SGD does not change versions.
  void note(const std::vector<ParameterEntry>& entries, bool values);
  void clear() noexcept;
  /// Whether all parameters with gradients have changed since note().
  bool all_changed(const std::vector<ParameterEntry>& entries) const;
  /// Whether some of them have changed.
  bool any_changed(const std::vector<ParameterEntry>& entries) const;

 private:
  static constexpr size_t kSampleBytes = 64;
  struct Mark {
    size_t entry;
    uint32_t version;
  };
  struct Sample {
    size_t entry;
    size_t bytes;
    std::array<char, kSampleBytes> values;
  };
  static bool changed(const ParameterEntry& entry, const Mark& mark);
  static bool changed(const ParameterEntry& entry, const Sample& sample);
  std::vector<Mark> marks_;
  std::vector<Sample> samples_;
};

}  // namespace muster::optim
