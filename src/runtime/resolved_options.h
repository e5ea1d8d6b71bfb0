#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/environment.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The options of the program, where they have their defaults replaced by what the launcher requests in environment
/// variables.
/// Throws: ConfigError (MU171) if both ask for different things; (MU002, MU021) for a variable that cannot be read.
RuntimeOptions resolved(RuntimeOptions options, const Environment& environment);
/// "option precision: bf16 (run.yaml line 3)": a line of plan() for each option given from outside the program.
std::vector<std::string> given_option_notes(const Environment& environment);
/// The number of ranks on this node that the program asks for; 0: as many as the launcher says.
int processes_wanted(const RuntimeOptions& options);

}  // namespace muster::runtime
