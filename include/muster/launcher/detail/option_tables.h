#pragma once

#include "muster/base/detail/options.h"
#include "muster/launcher/detail/options.h"

namespace muster {

/// Describes RunOptions: the flags of `muster run`, the section `run` of an option file, and the variables.
const options::Table<RunOptions>& run_option_table();

}  // namespace muster
