#pragma once

#include <string>
#include <vector>

#include "base/yaml.h"
#include "muster/base/detail/options.h"
#include "muster/base/environment.h"

namespace muster::cli {

// Why: docs/decisions/0114-one-reader-for-three-kinds-of-file.md.

/// The meaning of values with Accelerate's names.
struct AccelerateRequest {
  options::RawOptions options = {};  ///< options by Muster's names
  std::vector<std::string> without_effect =
      {};  ///< Accelerate's names that ask for features Muster does not have, each with the reason
};

/// The source of Accelerate's names: a file of Accelerate, which states every value and often the default, or Muster's
/// options, as flags or in section `run`.
enum class AccelerateOrigin { own_file, among_ours };

/// The values of a file of `accelerate config`, by the words of options::Place::launch; null and empty values are left
/// out. Throws: ConfigError (MU480) for an unknown key.
options::RawOptions accelerate_values(const std::string& path, const std::vector<options::FileValue>& values);

/// Moves the values with Accelerate's names out of `texts`, the keys of a section `run`.
options::RawOptions extract_accelerate(options::RawOptions& texts, const std::vector<options::Description>& known);

/// The values of flags and of a file; a flag replaces the file's value. A flag that names hardware or a paradigm
/// replaces the file's distributed_type.
options::RawOptions merged_accelerate(const options::RawOptions& flags, const options::RawOptions& in_file);

/// Checks the variables of Accelerate's launcher (ACCELERATE_*, FSDP_*, PARALLELISM_CONFIG_*, MEGATRON_LM_*) as the
/// names that they stand for, and returns those without effect, each with the reason. Those that Muster follows are
/// variables of options (`Description::other_tools`).
/// Throws: ConfigError as translate_accelerate().
std::vector<std::string> judge_variables(const Environment& variables);

/// A line about values without effect; "" if there are none.
std::string note_without_effect(const std::vector<std::string>& asked);

/// Whether the value comes from a flag: its place begins with "flag ".
bool is_flag(const options::Found& found);

/// Choices of Muster's own flags and variables, which a file need not repeat.
struct OwnChoices {
  bool accelerator = false;  ///< true: a kind of device that only the program can load is not an error
  bool devices = false;
  bool has_accelerators = true;  ///< false: a list of accelerators only gives the number of ranks
  int nodes = 0;                 ///< number of nodes; 0: not given
  bool strategy = false;
};

/// Translates the values. A value in Accelerate's own file that equals the default asks for nothing.
/// Throws: ConfigError (MU481) for features that Muster does not have, (MU482) if the number of ranks on a machine is
/// unknown, (MU483) for flags that exclude each other, (MU196, MU197, MU002) as strategy::own_sharding_fields().
AccelerateRequest translate_accelerate(const options::RawOptions& values, AccelerateOrigin origin,
                                       const OwnChoices& own = {});

}  // namespace muster::cli
