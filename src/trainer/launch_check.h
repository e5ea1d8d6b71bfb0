#pragma once  // for other rooms

#include <string>
#include <vector>

#include "base/file_values.h"
#include "muster/base/detail/options.h"

namespace muster::trainer {

/// The options of a Trainer that the runtime does not have, each with "trainer." before its name.
std::vector<options::Description> option_descriptions();

/// Checks that a Trainer without options of its own could follow these options, by name.
/// Throws: ConfigError (MU002) for a value that cannot be read, (MU440) with all that contradicts.
void check_launch_options(const options::RawOptions& given_options);

/// What a file of LightningCLI asks for.
struct LightningRequest {
  options::RawOptions options = {};              ///< of `trainer`, by the names of ours
  std::vector<std::string> of_program = {};      ///< keys that are the program's own: data, model, ...
  std::vector<std::string> without_effect = {};  ///< arguments of `trainer` that only code can give
};

/// Values that are Lightning's defaults: in a file that a tool wrote, which says everything, they ask for nothing.
enum class LightningDefaults { ask_for_nothing, count };

/// Translates its section `trainer`, which may stand in a section of a subcommand ("fit"). `known` are the options of
/// ours. Throws: ConfigError (MU480) for an unknown argument of the Trainer, (MU481) for a TPU; (MU196, MU197, MU002)
/// as strategy::own_sharding_fields().
LightningRequest translate_lightning(const std::vector<options::FileValue>& values,
                                     const std::vector<options::Description>& known,
                                     LightningDefaults defaults = LightningDefaults::ask_for_nothing);

}  // namespace muster::trainer
