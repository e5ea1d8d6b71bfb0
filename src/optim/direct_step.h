#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "optim/slot.h"

namespace muster::optim {

/// Notices that somebody else updated the parameters after a backward.
class DirectStepWatch {
 public:
  /// `values`: also remember some values, since SGD of LibTorch leaves versions as they are.
  void note(const std::vector<Slot>& slots, bool values);
  void forget() noexcept;
  /// All parameters with gradients have changed since note().
  bool moved(const std::vector<Slot>& slots) const;
  /// Some of them have.
  bool touched(const std::vector<Slot>& slots) const;

 private:
  static constexpr size_t kSampleBytes = 64;
  struct Mark {
    size_t slot;
    uint32_t version;
  };
  struct Sample {
    size_t slot;
    size_t bytes;
    std::array<char, kSampleBytes> values;
  };
  static bool changed(const Slot& slot, const Mark& mark);
  static bool changed(const Slot& slot, const Sample& sample);
  std::vector<Mark> marks_;
  std::vector<Sample> samples_;
};

}  // namespace muster::optim
