#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/options_file.h"

namespace muster::cli {

/// Whether Accelerate's values name DeepSpeed's own JSON file, and ask for DeepSpeed.
bool has_deepspeed_file(const options::RawOptions& accelerate);

/// What a DeepSpeed file asks for.
struct DeepspeedRequest {
  options::RawOptions accelerate = {};           ///< by the names of Accelerate
  std::vector<std::string> without_effect = {};  ///< keys that ask for what Muster does not have, each with the reason
};

/// Accelerate's values with what DeepSpeed's own file says in place of its name: stage, offloading, accumulation,
/// clipping and precision; see deepspeed_keys(). Precedence, highest first: flag, that file, any other value.
/// Throws: ConfigError (MU004) if it cannot be read, (MU480) for an unknown key, (MU481) for what Muster does not have.
DeepspeedRequest with_deepspeed_file(options::RawOptions accelerate);

}  // namespace muster::cli
