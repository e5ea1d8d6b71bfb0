#pragma once  // for other rooms

#include "base/yaml.h"
#include "muster/base/detail/options.h"

namespace muster::trainer {

/// The subcommands of LightningCLI, indexed by Stage.
inline constexpr std::string_view kSubcommands[] = {"fit", "validate", "test", "predict"};
bool is_subcommand(std::string_view word);

/// The option that an argument of Lightning's Trainer sets, by its name without "trainer."; nullptr if there is none.
const options::Description* trainer_argument(const std::vector<options::Description>& known,
                                             const std::string& argument);

/// The contents of a LightningCLI file.
struct LightningRequest {
  options::RawOptions options = {};              ///< options from section `trainer`, by Muster's names
  std::vector<std::string> of_program = {};      ///< keys for the program itself: data, model, ...
  std::vector<std::string> without_effect = {};  ///< arguments of `trainer` that only code can give
};

/// Whether a value that equals Lightning's default is a request. In a file that a tool wrote with every value, it is
/// not.
enum class LightningDefaults { ask_for_nothing, count };

/// Translates the section `trainer`, which may be inside a section of a subcommand ("fit"). `known` are Muster's
/// options.
/// Throws: ConfigError (MU480) for an unknown argument of the Trainer, (MU481) for a TPU; (MU196, MU197, MU002) as
/// strategy::own_sharding_fields().
LightningRequest translate_lightning(const std::vector<options::FileValue>& values,
                                     const std::vector<options::Description>& known,
                                     LightningDefaults defaults = LightningDefaults::ask_for_nothing);

}  // namespace muster::trainer
