#pragma once

#include "muster/base/detail/options_file.h"

namespace muster::cli {

/// Whether Accelerate's values name DeepSpeed's own JSON file, and ask for DeepSpeed.
bool has_deepspeed_file(const options::RawOptions& accelerate);

/// Accelerate's values with what DeepSpeed's own file says in place of its name: stage, offloading, accumulation,
/// clipping and precision. Precedence, highest first: flag, that file, any other value.
/// Throws: ConfigError (MU004) if it cannot be read, (MU481) for what Muster does not have.
options::RawOptions with_deepspeed_file(options::RawOptions accelerate);

}  // namespace muster::cli
