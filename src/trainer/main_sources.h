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

/// By Stage.
inline constexpr std::string_view kMainCommands[] = {"fit", "validate", "test", "predict"};

/// What a line, its files and the variables say. Of files the last counts, and of flags.
struct MainSources {
  options::RawOptions trainer_file = {};   ///< by the names of a program's options
  options::RawOptions trainer_flags = {};  ///< the same
  /// The other keys, a flag over a variable over a file: "model.lr", "data.batch_size", "seed_everything", "ckpt_path".
  std::map<std::string, options::FileValue> own = {};
  std::vector<std::string> problems = {};  ///< keys and flags that nobody knows, and the like
};
MainSources read_main_sources(const MainLine& line, const MainProgram& program, const Environment& variables);

/// Puts the values of one section ("model") into its fields. Returns what is wrong with them.
std::vector<std::string> apply_fields(const std::string& section, const std::vector<OptionField>& fields,
                                      const std::map<std::string, options::FileValue>& own);

}  // namespace muster::trainer
