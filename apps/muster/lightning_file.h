#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/file_values.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

/// What a file of LightningCLI asks for.
struct LightningRequest {
  options::RawOptions options = {};              ///< of `trainer`, by the names of ours
  std::vector<std::string> of_program = {};      ///< keys that are the program's own: data, model, ...
  std::vector<std::string> without_effect = {};  ///< arguments of `trainer` that only code can give
};

/// Translates its section `trainer`, which may stand in a section of a subcommand ("fit"). A value that is Lightning's
/// default asks for nothing. `known` are the options of ours.
/// Throws: ConfigError (MU480) for an unknown argument of the Trainer, (MU481) for a TPU; (MU196, MU197, MU002) as
/// strategy::own_sharding_fields().
LightningRequest translate_lightning(const std::vector<options::FileValue>& values,
                                     const std::vector<options::Description>& known);

}  // namespace muster::cli
