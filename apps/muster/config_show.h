#pragma once

#include "launch_call.h"

namespace muster::cli {

/// Prints what a launch would use: the file, the ranks, and each option with its value and source; `all`: also options
/// at their default. Throws: ConfigError as a launch would, before its first process.
void show_config(const LaunchSources& call, bool all);

}  // namespace muster::cli
