#pragma once

#include <string>
#include <vector>

#include "base/file_values.h"
#include "muster/base/detail/environment.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

/// What names of Accelerate ask for.
struct AccelerateRequest {
  options::RawOptions options = {};  ///< by the names of ours
  std::vector<std::string> without_effect =
      {};  ///< names of theirs that ask for what Muster does not have, each with the reason
};

/// Where names of Accelerate stand: in a file of its own, which says everything and often what is the default, or among
/// our options, as flags or in section `run`.
enum class AccelerateOrigin { own_file, among_ours };

/// The values of a file of `accelerate config`, by the names of accelerate_names(); null and empty ones are left out.
/// Throws: ConfigError (MU480) for an unknown key.
options::RawOptions accelerate_values(const std::string& path, const std::vector<options::FileValue>& values);

/// Takes the values with a name of Accelerate's out of `texts`, the keys of a section `run`.
options::RawOptions extract_accelerate(options::RawOptions& texts, const std::vector<options::Description>& known);

/// Values of flags and of a file together, a flag's in place of the file's. A flag that names hardware or a paradigm
/// replaces the file's distributed_type.
options::RawOptions merged_accelerate(const options::RawOptions& flags, const options::RawOptions& in_file);

/// Judges the variables of Accelerate's launcher (ACCELERATE_*, FSDP_*, PARALLELISM_CONFIG_*, MEGATRON_LM_*) as the
/// names that they stand for; what has no effect is returned, each with the reason. Those that are followed are
/// options' variables (`Description::other_tools`). Throws: ConfigError as translate_accelerate().
std::vector<std::string> judge_variables(const Environment& variables);

/// A line about what has no effect; "" for nothing.
std::string note_without_effect(const std::vector<std::string>& asked);

/// Whether the value was a flag's: its place begins with "flag ".
bool is_flag(const options::Found& found);

/// What our own flags and variables say already, which a file need not.
struct OwnChoices {
  bool accelerator = false;  ///< so that a kind of device that only the program can load is no error
  bool devices = false;
  bool has_accelerators = true;  ///< to train on; without any, a list of them only says how many ranks there are
  int nodes = 0;                 ///< 0: not said
  bool strategy = false;
};

/// Translates them. A file's own value that is the default asks for nothing.
/// Throws: ConfigError (MU481) for what Muster does not have, (MU482) if the ranks of a machine cannot be counted,
/// (MU483) for flags that exclude each other, (MU196, MU197, MU002) as strategy::own_sharding_fields().
AccelerateRequest translate_accelerate(const options::RawOptions& values, AccelerateOrigin origin,
                                       const OwnChoices& own = {});

}  // namespace muster::cli
