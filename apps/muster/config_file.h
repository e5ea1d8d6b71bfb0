#pragma once

#include <string>
#include <vector>

#include "accelerate_file.h"
#include "muster/base/detail/options.h"

namespace muster::cli {

// Why: docs/decisions/0114-one-reader-for-three-kinds-of-file.md.

/// Which tool a configuration file belongs to, by its keys.
enum class FileKind { muster, accelerate, lightning };

/// The contents of a configuration file.
struct ConfigFile {
  std::string path = {};
  FileKind kind = FileKind::muster;
  options::File file = {};              ///< section `run`, by Muster's names
  options::RawOptions accelerate = {};  ///< values by Accelerate's names, for translate_accelerate()
  std::vector<std::string> notes = {};  ///< lines for stderr: keys without effect
};

/// Reads a file of any kind: Muster's, with the section of that name (`run`), one of `accelerate config`, or one of
/// LightningCLI. Accelerate's names in section `run` are returned as values by Accelerate's names. `known` are the
/// options that may be given there.
/// Throws: ConfigError (MU304) if the keys belong to none of the three, or if an option is outside of `run`; (MU480)
/// for an unknown key of Accelerate's or Lightning's file; (MU004) as options::File::parse() and options::read_text().
ConfigFile read_config(const std::string& path, const std::string& section,
                       const std::vector<options::Description>& known);

/// A configuration file with Accelerate's names translated to Muster's.
struct Translated {
  options::File file = {};              ///< section `run`, with the translated values of Accelerate's names
  options::RawOptions from_flags = {};  ///< translated values of flags with Accelerate's names
  std::vector<std::string> notes = {};  ///< lines for stderr: values without effect
};
/// Translates the file, and `flags`: values of flags with Accelerate's names, which take precedence over the file's.
/// `own` are the choices of Muster's flags and variables.
/// Throws: ConfigError as translate_accelerate(), (MU305) if one option is set by both its own name and Accelerate's.
Translated translated_config(const ConfigFile& config, const options::RawOptions& flags = {},
                             const OwnChoices& own = {});

}  // namespace muster::cli
