#include "muster/launcher/detail/run.h"

#include <algorithm>
#include <deque>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "commands.h"
#include "muster/base/error.h"
#include "muster/launcher/detail/option_tables.h"
#include "muster/precision/options.h"
#include "muster/strategy/detail/launch_check.h"

namespace muster::cli {
namespace {

constexpr const char* kConfigVariable = "MUSTER_CONFIG";

/// What CLI11 writes into while it parses.
struct Flags {
  std::string config;
  std::deque<std::string> texts;
  std::map<std::string, const CLI::Option*> given;
};

std::string spellings(const options::Description& option, const std::string& before) {
  std::string dashes = "--" + before + option.flag().substr(2);
  std::string underscores = "--" + before + option.name;
  return dashes == underscores ? dashes : dashes + "," + underscores;
}

std::string help_of(const options::Description& option) {
  std::string result = option.help;
  if (!option.unit.empty()) result += " (" + option.unit + ")";
  if (!option.default_text.empty()) result += " [" + option.default_text + "]";
  return result + (option.variable.empty() ? "" : " {" + option.variable + "}");
}

void add_flags(CLI::App& app, const std::vector<options::Description>& table, Flags& flags) {
  for (const auto& option : table) {
    auto& text = flags.texts.emplace_back();
    if (option.is_switch)
      flags.given[option.name] =
          app.add_flag(spellings(option, "") + ",!" + "--no-" + option.flag().substr(2), text, help_of(option));
    else flags.given[option.name] = app.add_option(spellings(option, ""), text, help_of(option));
  }
  app.add_option("--config", flags.config, "YAML file with a section `run` of these options {MUSTER_CONFIG}");
}

/// The program and its arguments: everything from the first word that is no flag.
Arguments program_of(const CLI::App& app) {
  auto rest = app.remaining(true);
  if (!rest.empty() && rest.front() == "--") rest.erase(rest.begin());
  else if (!rest.empty() && rest.front().starts_with("-"))
    throw UsageError("MU006", "muster run knows no flag '" + rest.front() +
                                  "'; flags of the program stand after its name (see muster run --help)");
  return rest;
}

RunOptions read_options(const Flags& flags) {
  options::Sources sources;
  sources.variables = Environment::of_process();
  auto config = flags.config.empty() ? sources.variables.find(kConfigVariable).value_or("") : flags.config;
  if (!config.empty()) sources.file = options::File::load(config);
  for (const auto& [name, option] : flags.given)
    if (option->count() > 0) sources.flags[name] = option->results().back();
  return options::read(run_option_table(), sources).values;
}

/// What every rank would refuse is refused before any starts.
void check_launch_options(const RunOptions& options) {
  if (!options.precision.empty()) Precision::parse(options.precision);
  strategy::check_launch_options(options.strategy, options.fsdp);
}

}  // namespace

int run(const Arguments& arguments) {
  CLI::App app(
      "Starts a program on several ranks of this node, watches them and passes their output on.\n"
      "The words in [] are defaults, those in {} environment variables; a flag counts more than a variable, a variable "
      "more "
      "than the file.",
      "muster run");
  app.prefix_command();
  Flags flags;
  add_flags(app, run_option_table().descriptions(), flags);
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::string text = app.help(), options = "[OPTIONS]";
    std::puts(text.replace(text.find(options), options.size(), options + " PROGRAM [ARGUMENTS]").c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw UsageError("MU006", std::string(error.what()) + " (see muster run --help)");
  }
  auto program = program_of(app);
  const auto options = read_options(flags);
  check_launch_options(options);
  return muster::run(options, program);
}

}  // namespace muster::cli
