#pragma once  // for other rooms

#include <optional>

#include "muster/precision/options.h"

namespace muster::precision {

/// Returns one line that says what a CPU only emulates in this precision and what to choose instead; nullopt if it
/// computes everything natively.
std::optional<std::string> emulation_on_cpu(const Precision& precision, bool multiplies_bfloat16);

}  // namespace muster::precision
