#pragma once  // for other rooms

#include "hook/interceptor.h"

namespace muster::hook {

/// Keeps the interceptor out of the process.
inline constexpr DisableVariable kHalfLstmSwitch{"MUSTER_NO_HALF_LSTM"};

/// Runs LSTM in float32 where autocast on a CPU asks for a dtype without a CPU kernel: float16, and bfloat16 on a
/// processor for which oneDNN has no kernel. Nothing else changes.
/// Installs the interceptor half_lstm once per process, unless the environment forbids it; later calls do nothing.
/// Thread-safe.
void run_half_lstm_in_float();

}  // namespace muster::hook
