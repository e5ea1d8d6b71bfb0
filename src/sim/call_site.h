#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace muster::sim {

/// A place where the host called something: return addresses, which are converted to text only when it is read.
class CallSite {
 public:
  /// The call site of the caller.
  static CallSite here();
  /// The innermost functions of the program, not of LibTorch or the simulator, with the autograd node that ran, if one
  /// did: "step at train.cpp:17, called by main at train.cpp:40".
  std::string text() const;

 private:
  static constexpr size_t kMost = 40;
  std::array<void*, kMost> frames_ = {};
  int count_ = 0;
  std::string node_;
};

}  // namespace muster::sim
