#pragma once

#include "muster/precision/options.h"

#include <optional>
#include <string>

namespace muster::precision {

/// One line on what a CPU only emulates of it, and what to choose instead; nothing where it computes all itself.
std::optional<std::string> emulation_on_cpu(Precision precision, bool multiplies_bfloat16);

}  // namespace muster::precision
