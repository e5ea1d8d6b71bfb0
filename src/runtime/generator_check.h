#pragma once

#include <cstdint>

#include "muster/comm/communicator.h"

namespace muster::runtime {

/// Detects in the first steps of a program whether all ranks draw the same random numbers from LibTorch's default CPU
/// generator.
/// The digests travel in the messages of the steps themselves.
/// Thread safety: one thread at a time.
class GeneratorCheck {
 public:
  explicit GeneratorCheck(comm::Communicator group) : group_(std::move(group)) {}
  /// Called after an optimizer step. Returns true once: if all generators were in the same state at the step before,
  /// and this one has moved since.
  bool note_step();

 private:
  comm::Communicator group_;
  uint64_t last_digest_ = 0;  // digest of the state at the previous step; 0: none
  int steps_ = 0;
};

}  // namespace muster::runtime
