#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// Whether Accelerate's values ask for DeepSpeed and name a JSON file of DeepSpeed.
bool has_deepspeed_file(const options::RawOptions& accelerate);

/// The meaning of a DeepSpeed file.
struct DeepspeedRequest {
  options::RawOptions accelerate = {};           ///< values by Accelerate's names
  std::vector<std::string> without_effect = {};  ///< keys for features Muster does not have, each with the reason
};

/// Accelerate's values, with the name of DeepSpeed's file replaced by its contents: stage, offloading, accumulation,
/// clipping and precision; see options::Place::deepspeed. Precedence, highest first: flag, that file, any other value.
/// Throws: ConfigError (MU004) if the file cannot be read, (MU480) for an unknown key, (MU481) for features that Muster
/// does not have.
DeepspeedRequest with_deepspeed_file(options::RawOptions accelerate);

}  // namespace muster::cli
