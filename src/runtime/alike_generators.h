#pragma once

#include "muster/dist/communicator.h"

#include <cstdint>

namespace muster::runtime {

/// Watches in the first steps of a program whether all ranks draw the same random numbers from LibTorch's default generator of the CPU.
/// What ranks know of each other travels in messages of the steps themselves.
/// Thread safety: one thread at a time.
class AlikeGenerators {
 public:
  explicit AlikeGenerators(dist::Communicator group) : group_(std::move(group)) {}
  /// An optimizer has stepped. True once: if all generators were in one state at the step before, and this one has moved since.
  bool note_step();

 private:
  dist::Communicator group_;
  uint64_t said_ = 0;   // of the state at the step before
  int steps_ = 0;
};

}  // namespace muster::runtime
