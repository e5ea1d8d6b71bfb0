#pragma once

#include "base/yaml.h"
#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/trainer/detail/main_call.h"

// The parts of a program with trainer_main(): how its command line, files and environment become a MainCall.
// Why: docs/decisions/0119-a-program-of-one-line.md.
namespace muster::trainer {

// main_sources.cpp: the values of a call

/// A flag on the command line: --model.lr 0.1.
struct LineFlag {
  std::string name;                 ///< name with underscores and without dashes: "model.lr"
  std::string place;                ///< place as written: "flag --model.lr"
  std::optional<std::string> text;  ///< value; unset if there is none
};

/// The arguments of a program with subcommands, in order.
struct MainLine {
  std::string command = {};  ///< subcommand such as "fit"; empty if there is none
  std::vector<std::string> config = {};
  std::vector<LineFlag> flags = {};
  bool help = false;
  bool print_config = false;
  std::vector<std::string> problems = {};  ///< complete sentences about what is wrong
};

/// Splits the words after the program's name. A flag takes the next word as its value unless that word begins with two
/// dashes, so -1 is a value.
MainLine split_line(const std::vector<std::string>& words);

/// The values from the command line, its files and the environment. Among files, and among flags, the last one wins.
struct MainSources {
  options::RawOptions trainer_file = {};   ///< Trainer options from files, by the names of program options
  options::RawOptions trainer_flags = {};  ///< Trainer options from flags, by the names of program options
  /// Other keys, with precedence flag, variable, file: "model.lr", "data.batch_size", "seed_everything", "ckpt_path".
  std::map<std::string, options::FileValue> own = {};
  std::vector<std::string> problems = {};  ///< unknown keys and flags, and similar errors
};
MainSources read_main_sources(const MainLine& line, const MainProgram& program, const Environment& variables);

/// The options of one section by their full names, with the present values as defaults: "model.lr".
std::vector<options::Description> own_options(const std::string& section, const std::vector<OptionField>& fields);

/// Puts the values of one section ("model") into its fields. Returns the errors.
std::vector<std::string> apply_fields(const std::string& section, const std::vector<OptionField>& fields,
                                      const std::map<std::string, options::FileValue>& own);

// main_call.cpp: the texts that a call prints

/// A line of a configuration file: "trainer.max_epochs" is the key max_epochs of section trainer.
struct ConfigLine {
  std::string key;
  std::string text;
  bool is_list = false;
  bool may_be_none = false;  ///< the text "none" means null
};

/// The file with these lines. Requires: lines of one section are adjacent.
std::string config_text(const std::vector<ConfigLine>& lines);

/// The output of --help. With a command, it includes the arguments of the Trainer. `name` is the program's.
std::string main_help(const std::string& name, const std::string& command, const MainProgram& program,
                      const std::vector<options::Description>& trainer_arguments);

// main_trainer.cpp: the options of the Trainer

/// The Trainer's options after all sources were read.
struct TrainerRequest {
  std::vector<ConfigLine> config = {};  ///< every option, as a file states it
  std::string line = {};                ///< options that were found, for MUSTER_OPTIONS
  std::vector<std::string> notes = {};
  TrainerOptions options = {};  ///< `defaults` without the runtime's options that were found
  std::vector<std::string> problems = {};
};
/// Reads and checks the options. Values in `defaults` never count as a contradiction, except options of a strategy.
TrainerRequest trainer_request(const TrainerOptions& defaults, const MainSources& sources,
                               const Environment& variables);

/// The arguments of section `trainer`, such as "trainer.max_epochs", with the program's defaults.
std::vector<options::Description> trainer_arguments(const TrainerOptions& defaults);

}  // namespace muster::trainer
