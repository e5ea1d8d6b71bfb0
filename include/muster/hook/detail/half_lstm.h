#pragma once

namespace muster::hook {

/// Set to anything but "" or "0", this environment variable keeps the kernel out of the process.
inline constexpr const char* kNoHalfLstmVariable = "MUSTER_NO_HALF_LSTM";

/// Whether the environment allows the kernel.
bool half_lstm_allowed();

/// Runs LSTM in float32 where autocast on a CPU asks for float16, for which LSTM has no CPU kernel; everything else
/// stays.
/// Registers with LibTorch's dispatcher once per process, unless the environment forbids it; later calls do nothing.
/// Thread-safe.
void run_half_lstm_in_float();

}  // namespace muster::hook
