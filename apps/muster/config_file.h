#pragma once

#include <string>
#include <vector>

#include "accelerate_file.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

/// Which tool a configuration file belongs to, by its keys.
enum class FileKind { muster, accelerate, lightning };

/// A configuration file, read.
struct ConfigFile {
  std::string path = {};
  FileKind kind = FileKind::muster;
  options::File file = {};              ///< section `run`, by our names
  options::RawOptions accelerate = {};  ///< values by Accelerate's names, which translate_accelerate() takes
  std::vector<std::string> notes = {};  ///< lines for stderr: keys without effect
};

/// Reads a file of any kind: ours, with the section of that name (`run`), of `accelerate config`, or of LightningCLI.
/// Names of Accelerate in section `run` are values by Accelerate's names, too. `known` are the options that may stand
/// there. Throws: ConfigError (MU304) if the keys are those of none of the three, or if an option stands outside of
/// `run`; (MU480) for an unknown key of Accelerate's or Lightning's; (MU004) as options::File::load().
ConfigFile read_config(const std::string& path, const std::string& section,
                       const std::vector<options::Description>& known);

/// A configuration file, with Accelerate's names translated to ours.
struct Translated {
  options::File file = {};              ///< section `run`, with what the file's values by Accelerate's names ask for
  options::RawOptions from_flags = {};  ///< what flags with Accelerate's names ask for
  std::vector<std::string> notes = {};  ///< lines for stderr: what has no effect
};
/// Translates the file, and `flags`: values of flags with Accelerate's names, which take precedence over the file's.
/// `own` is what our flags and variables say.
/// Throws: ConfigError as translate_accelerate(), (MU305) if one option is set by its own name and by Accelerate's.
Translated translated_config(const ConfigFile& config, const options::RawOptions& flags = {},
                             const OwnChoices& own = {});

}  // namespace muster::cli
