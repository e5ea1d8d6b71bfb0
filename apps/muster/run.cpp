#include "launcher/run.h"

#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/text.h"
#include "commands.h"
#include "config_file.h"
#include "foreign_flags.h"
#include "options/launcher_fields.h"
#include "parse.h"
#include "run_flags.h"

namespace muster::cli {
namespace {

using options::Description;

constexpr const char* kConfigVariable = "MUSTER_CONFIG";

Description config_flag() {
  return {.name = "config",
          .help = "YAML file: ours with a section `run` of these options, or that of accelerate config or LightningCLI",
          .variable = kConfigVariable,
          .type = "file"};
}

void add_all_flags(CLI::App& app, Flags& flags) {
  add_flags(app, "Options of the launcher", run_option_table().descriptions(), flags);
  add_flags(app, "Options of the launcher", {config_flag()}, flags);
  add_flags(app, "Options of the program", options_of_program(), flags);
}

/// The program and its arguments: everything from the first word that is not a flag.
Arguments program_of(CLI::App& app, const Arguments& arguments) {
  auto rest = app.remaining(true);
  if (rest.empty()) return rest;
  if (rest.front() == "--") return {rest.begin() + 1, rest.end()};
  if (rest.front().starts_with("-")) refuse_flag(rest.front(), "run", {"--config"});
  const auto split = split_command(rest, rest.size() == arguments.size(), run_flags());
  if (!split.ours.empty()) {
    app.clear();
    parse_flags(app, with_values(split.ours, run_flags()), "run");
  }
  if (!split.resemble_our_flags.empty()) {
    const auto words = joined_by(" ", split.resemble_our_flags);
    std::fprintf(stderr, "muster: after the program, so passed on to it: %s (flags of muster run stand before it)\n",
                 words.c_str());
  }
  return split.program;
}

/// Reads only the file named by --config or MUSTER_CONFIG.
options::Sources all_sources(const Flags& flags) {
  auto sources = read_sources(flags);
  if (const auto note = note_without_effect(judge_variables(sources.variables)); !note.empty()) print_notes({note});
  const auto flag = sources.flags.find("config");
  const bool is_given = flag != sources.flags.end();
  const auto path = is_given ? flag->second : sources.variables.find(kConfigVariable).value_or("");
  if (is_given) sources.flags.erase(flag);
  if (!is_given && path.empty()) return sources;
  const auto config = read_config(path, run_option_table().section, all_options());
  const auto translated = translated_config(config, {}, own_choices(sources));
  print_notes(config.notes);
  print_notes(translated.notes);
  add_file(sources, translated.file);
  return sources;
}

}  // namespace

std::vector<Description> run_flags() {
  auto all = all_options();
  all.push_back(config_flag());
  return all;
}

int run(const Arguments& arguments) {
  CLI::App app(
      "Starts a program on several ranks of this node, watches them and passes their output on.\n"
      "Defaults are in [], environment variables in {}. Precedence, highest first: flag, MUSTER_OPTIONS, single "
      "variable, file. If a flag is given twice, the last one counts; --options, --ddp and --fsdp add up. In a list, "
      "an item with a comma is put in double quotes: '\"a{1,2}\",b'.",
      "muster run");
  app.prefix_command();
  Flags flags;
  add_all_flags(app, flags);
  Arguments program;
  try {
    const auto words = with_values(arguments, run_flags());
    parse_flags(app, words, "run");
    program = program_of(app, words);
  } catch (const CLI::CallForHelp&) {
    print_help_with_program(app);
    return 0;
  }
  return muster::run(run_options(given_options(all_sources(flags))), program);
}

}  // namespace muster::cli
