#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_values.h"
#include "main_line.h"
#include "muster/base/detail/environment.h"
#include "muster/trainer/detail/main_call.h"

namespace muster::trainer {

/// Names of the subcommands, indexed by Stage.
inline constexpr std::string_view kMainCommands[] = {"fit", "validate", "test", "predict"};

/// The values from the command line, its files and the environment. Among files, and among flags, the last one wins.
struct MainSources {
  options::RawOptions trainer_file = {};   ///< Trainer options from files, by the names of program options
  options::RawOptions trainer_flags = {};  ///< Trainer options from flags, by the names of program options
  /// Other keys, with precedence flag, variable, file: "model.lr", "data.batch_size", "seed_everything", "ckpt_path".
  std::map<std::string, options::FileValue> own = {};
  std::vector<std::string> problems = {};  ///< unknown keys and flags, and similar errors
};
MainSources read_main_sources(const MainLine& line, const MainProgram& program, const Environment& variables);

/// Puts the values of one section ("model") into its fields. Returns the errors.
std::vector<std::string> apply_fields(const std::string& section, const std::vector<OptionField>& fields,
                                      const std::map<std::string, options::FileValue>& own);

}  // namespace muster::trainer
