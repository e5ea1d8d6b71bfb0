#pragma once

#include <string>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/sim/sim.h"
#include "muster/testing/compare.h"

namespace muster::sim {

/// A test on the simulated accelerator, whose kernels are the CPU's with one thread.
class Simulated : public ::testing::Test {
 protected:
  Simulated() {
    install();
    at::set_num_threads(1);
    set_seed(1);
    reset_stats();
  }
};

inline const c10::impl::VirtualGuardImpl& guards() {
  static const c10::impl::VirtualGuardImpl guards(at::kPrivateUse1);
  return guards;
}
inline c10::Stream side(int index = 0) { return guards().getStreamFromGlobalPool(device(index)); }
inline c10::Stream current(int index = 0) { return guards().getStream(device(index)); }
inline void wait_for(c10::Stream waiting, c10::Stream awaited) {
  c10::Event event(at::kPrivateUse1);
  event.record(awaited);
  event.block(waiting);
}

/// Empty if the bits are those expected, wherever both are.
inline std::string difference_in_bits(const at::Tensor& actual, const at::Tensor& expected) {
  return testing::difference_in_bits(actual.detach().cpu(), expected.detach().cpu());
}

}  // namespace muster::sim
