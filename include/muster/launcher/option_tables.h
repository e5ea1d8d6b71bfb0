#pragma once

#include "muster/base/options.h"
#include "muster/launcher/options.h"

namespace muster {

/// The description of RunOptions: flags of `muster run`, section `run` of an option file, variables.
const options::Table<RunOptions>& run_option_table();

}  // namespace muster
