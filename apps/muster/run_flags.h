#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "config_file.h"
#include "muster/base/detail/options.h"
#include "muster/launcher/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class Option;
}  // namespace CLI

namespace muster::cli {

/// The launcher's options, followed by those of a program that the launcher does not have: every option that a flag, a
/// variable or the file can set.
std::vector<options::Description> all_options();
/// The options of a program alone.
std::vector<options::Description> options_of_program();

/// All spellings of the flags of an option, such as "--log-dir" and "--log_dir", and for a switch "--no-prefix".
std::vector<std::string> spellings(const options::Description& option);
std::vector<std::string> negations(const options::Description& option);

/// The values that CLI11 parses, and the flags that were given, by option name. Not movable.
struct Flags {
  Flags() = default;
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;
  std::deque<std::string> texts;
  std::map<std::string, const CLI::Option*> given;
};

/// Adds a flag for each option, except spellings that the application already has.
void add_flags(CLI::App& app, const std::string& group, const std::vector<options::Description>& table, Flags& flags);

/// Throws: UsageError (MU006); CLI::CallForHelp if help is requested.
void parse_flags(CLI::App& app, const Arguments& arguments, std::string_view command);
/// Throws: UsageError (MU006), always, with Muster's name for the flag. `known` are further flags of the command.
[[noreturn]] void refuse_flag(const std::string& flag, std::string_view command, std::vector<std::string> known);

/// Reads the flags of Muster's options, and the variables.
options::Sources read_sources(const Flags& flags);
/// The choices in these sources that a file need not repeat.
OwnChoices own_choices(const options::Sources& sources);
/// Adds the translated section `run` of a configuration file to the sources.
void add_file(options::Sources& sources, const options::File& file);

/// The options from all sources, by name. Throws: ConfigError as runtime::find_given_options().
options::RawOptions given_options(const options::Sources& sources);
/// The launcher's options, including the line for the ranks. Options that every rank would refuse are refused here.
/// Throws: ConfigError as runtime::check_given_options().
RunOptions run_options(options::RawOptions given);

/// Prints each note as a line on stderr.
void print_notes(const std::vector<std::string>& notes);

}  // namespace muster::cli
