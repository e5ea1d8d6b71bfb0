#pragma once

namespace muster::hook {

/// Lets LSTM run in float32 where autocast on a CPU asks for float16, which has no kernel for it there; everything else stays.
/// Enters LibTorch's dispatcher once per process; later calls do nothing. Thread-safe.
void run_half_lstm_in_float();

}  // namespace muster::hook
