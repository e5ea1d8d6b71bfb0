#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "muster/comm/communicator.h"
#include "muster/data/options.h"
#include "muster/tree/state.h"

namespace muster::runtime {

/// The states of LibTorch's default generators in this process: that of the CPU and, if `device` is not the CPU, those
/// of all devices of its kind.
State random_state(c10::Device device);
/// Throws: CheckpointError (MU208, MU209). The generator of a device without a saved state is not changed.
void set_random_state(const State& state, c10::Device device);

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

/// Sets the named default generators of LibTorch and the generators in the list to the states that they have on rank 0.
/// Collective. Throws, on all ranks: UsageError (MU328) if ranks name different generators; (MU329) for an undefined
/// generator.
void synchronize_rng_states(const comm::Communicator& group, c10::Device device, const SyncedGenerators& kinds,
                            std::vector<at::Generator> generators);

}  // namespace muster::runtime
