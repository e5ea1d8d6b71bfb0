#pragma once

#include "launch_call.h"

namespace muster::cli {

/// Prints what a launch would follow: the file, the ranks, and each option with its value and its source; `all`:
/// options that are at their default, too. Throws: ConfigError as a launch would, before its first process.
void show_config(const LaunchSources& call, bool all);

}  // namespace muster::cli
