#pragma once

#include <string>
#include <vector>

#include "muster/base/environment.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The options of the program, with defaults replaced by what the launcher requests in environment variables.
/// Throws: ConfigError (MU171) if the program and a variable ask for different things; (MU002, MU021) for a variable
/// that cannot be read.
RuntimeOptions resolved(RuntimeOptions options, const Environment& environment);
/// Lines of plan() such as "option precision: bf16 (run.yaml line 3)", one per option given from outside the program.
std::vector<std::string> given_option_notes(const Environment& environment);
/// The number of ranks on this node that the program asks for; 0: the number that the launcher sets.
int processes_wanted(const RuntimeOptions& options);

}  // namespace muster::runtime
