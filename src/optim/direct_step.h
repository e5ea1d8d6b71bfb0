#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "optim/parameter_entry.h"

namespace muster::optim {

/// Detects that other code updated the parameters after a backward.
class DirectStepWatch {
 public:
  /// `values`: also remember some values, since SGD of LibTorch leaves versions as they are.
  void note(const std::vector<ParameterEntry>& entries, bool values);
  void clear() noexcept;
  /// All parameters with gradients have changed since note().
  bool all_changed(const std::vector<ParameterEntry>& entries) const;
  /// Some of them have.
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
