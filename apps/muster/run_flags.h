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

/// The launcher's options, then those of a program that the launcher does not have: every option that a flag, a
/// variable or the file can set.
std::vector<options::Description> all_options();
/// Those of a program alone.
std::vector<options::Description> options_of_program();

/// Every way to write the flags of an option, such as "--log-dir" and "--log_dir", and of a switch "--no-prefix".
std::vector<std::string> spellings(const options::Description& option);
std::vector<std::string> negations(const options::Description& option);

/// What CLI11 writes into while it parses, and which flags were given, by the name of their option. Not movable.
struct Flags {
  Flags() = default;
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;
  std::deque<std::string> texts;
  std::map<std::string, const CLI::Option*> given;
};

/// Adds a flag for each option, apart from spellings that the application has already.
void add_flags(CLI::App& app, const std::string& group, const std::vector<options::Description>& table, Flags& flags);

/// Throws: UsageError (MU006); CLI::CallForHelp where help is asked for.
void parse_flags(CLI::App& app, const Arguments& arguments, std::string_view command);
/// Throws: UsageError (MU006) that says what the flag is called here. `known` are further flags of the command.
[[noreturn]] void refuse_flag(const std::string& flag, std::string_view command, std::vector<std::string> known);

/// What the flags of our options and the variables say.
options::Sources read_sources(const Flags& flags);
/// What they say that a file need not.
OwnChoices own_choices(const options::Sources& sources);
/// Puts a configuration file into the sources: its section `run`, translated.
void add_file(options::Sources& sources, const options::File& file);

/// What all sources say, by the name of the option. Throws: ConfigError as runtime::find_given_options().
options::RawOptions given_options(const options::Sources& sources);
/// The launcher's options, with what the ranks get in one line. What every rank would refuse is refused here.
/// Throws: ConfigError as runtime::check_given_options().
RunOptions run_options(options::RawOptions given);

/// Prints each note as a line of stderr.
void print_notes(const std::vector<std::string>& notes);

}  // namespace muster::cli
