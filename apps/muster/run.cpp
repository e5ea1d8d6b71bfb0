#include "muster/launcher/detail/run.h"

#include <algorithm>
#include <cstdio>
#include <deque>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "commands.h"
#include "config_file.h"
#include "foreign_flags.h"
#include "muster/base/detail/known_names.h"
#include "muster/base/detail/options_line.h"
#include "muster/base/error.h"
#include "muster/launcher/detail/option_tables.h"
#include "muster/runtime/detail/launch_check.h"
#include "node_defaults.h"

namespace muster::cli {
namespace {

using options::Description;

constexpr const char* kConfigVariable = "MUSTER_CONFIG";

/// What CLI11 writes into while it parses.
struct Flags {
  std::string config;
  CLI::Option* config_given = nullptr;
  std::deque<std::string> texts;
  std::map<std::string, const CLI::Option*> given;
};

bool has_name(const Description& option, const std::string& name) {
  return option.name == name || std::find(option.aliases.begin(), option.aliases.end(), name) != option.aliases.end();
}

/// The options of the program, apart from those of which the launcher has its own.
std::vector<Description> options_of_program() {
  const auto ours = run_option_table().descriptions();
  std::vector<Description> all;
  for (const auto& option : runtime::program_options())
    if (!option.code_only &&
        std::none_of(ours.begin(), ours.end(), [&](const auto& own) { return has_name(own, option.name); }))
      all.push_back(option);
  return all;
}

std::vector<Description> all_options() {
  auto all = run_option_table().descriptions();
  for (auto& option : options_of_program()) all.push_back(std::move(option));
  return all;
}

/// Every flag that takes a word after the program, too.
std::vector<Description> all_flags() {
  auto all = all_options();
  all.push_back({.name = "config"});
  return all;
}

void add_spelling(std::string& spellings, std::string word, char from, char to) {
  std::replace(word.begin(), word.end(), from, to);
  if (("," + spellings + ",").find(",--" + word + ",") == std::string::npos)
    spellings += (spellings.empty() ? "--" : ",--") + word;
}

/// With hyphens and with underscores.
std::string spellings(const Description& option) {
  std::string result;
  const auto name = option.flag().substr(2);
  add_spelling(result, name, '_', '-');
  add_spelling(result, name, '-', '_');
  for (const auto& alias : option.aliases)
    // "ddp.rank" would be no flag that anybody types.
    if (alias.find('.') == std::string::npos) {
      add_spelling(result, alias, '_', '-');
      add_spelling(result, alias, '-', '_');
    }
  return result;
}

/// Of a switch: --no-name.
std::string negations(const Description& option) {
  std::string words;
  auto name = "no-" + option.flag().substr(2);
  add_spelling(words, name, '_', '-');
  add_spelling(words, name, '-', '_');
  for (size_t at = 0; (at = words.find("--", at)) != std::string::npos; at += 3) words.insert(at, "!");
  return "," + words;
}

std::string help_of(const Description& option) {
  std::string result = option.help;
  if (!option.unit.empty()) result += " (" + option.unit + ")";
  if (!option.default_text.empty()) result += " [" + option.default_text + "]";
  return result + (option.variable.empty() ? "" : " {" + option.variable + "}");
}

void add_flags(CLI::App& app, const std::string& group, const std::vector<Description>& table, Flags& flags) {
  for (const auto& option : table) {
    auto& text = flags.texts.emplace_back();
    auto* added = option.is_switch ? app.add_flag(spellings(option) + negations(option), text, help_of(option))
                                   : app.add_option(spellings(option), text, help_of(option));
    added->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    flags.given[option.name] = added;
  }
}

void add_all_flags(CLI::App& app, Flags& flags) {
  add_flags(app, "Options of the launcher", run_option_table().descriptions(), flags);
  flags.config_given =
      app.add_option("--config", flags.config, "YAML file with a section `run` of these options {MUSTER_CONFIG}");
  flags.config_given->group("Options of the launcher")->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_flags(app, "Options of the program", options_of_program(), flags);
}

[[noreturn]] void refuse_flag(const std::string& flag) {
  const auto here = our_name_for(flag);
  std::vector<std::string> known{"--config"};
  for (const auto& option : all_options()) known.push_back(option.flag());
  const auto nearest = nearest_name(flag.substr(0, flag.find('=')), known);
  throw UsageError("MU006", "muster run knows no flag '" + flag + "'" +
                                (!here.empty()      ? "; here it is " + here
                                 : !nearest.empty() ? "; nearest is '" + nearest + "'"
                                                    : "") +
                                "; flags of the program stand after its name (see muster run --help)");
}

void parse_flags(CLI::App& app, const Arguments& arguments) {
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::CallForHelp*>(&error)) throw;
    throw UsageError("MU006", std::string(error.what()) + " (see muster run --help)");
  }
}

/// The program and its arguments: everything from the first word that is no flag.
Arguments program_of(CLI::App& app, const Arguments& arguments) {
  auto rest = app.remaining(true);
  if (rest.empty()) return rest;
  if (rest.front() == "--") return {rest.begin() + 1, rest.end()};
  if (rest.front().starts_with("-")) refuse_flag(rest.front());
  const auto split = split_command(rest, rest.size() == arguments.size(), all_flags());
  if (!split.ours.empty()) {
    app.clear();
    parse_flags(app, with_values(split.ours, all_flags()));
  }
  if (!split.resemble_our_flags.empty()) {
    std::string words;
    for (const auto& word : split.resemble_our_flags) words += (words.empty() ? "" : " ") + word;
    std::fprintf(stderr, "muster: after the program, so passed on to it: %s (flags of muster run stand before it)\n",
                 words.c_str());
  }
  return split.program;
}

/// In the file, a key of its own overrides the same option in the one-line key `options`.
void expand_line(options::RawOptions& texts) {
  const auto known = all_options();
  texts = options::without_aliases(known, texts);
  const auto line = texts.find("options");
  if (line == texts.end()) return;
  auto in_line = options::without_aliases(known, options::read_line(line->second.text, line->second.place));
  if (in_line.contains("options"))
    throw ConfigError("MU001", in_line.at("options").place + ": unknown option 'options' in a line of options; " +
                                   "write what it holds into the line itself");
  texts.merge(in_line);
}

void add_later(options::RawOptions& texts, const options::RawOptions& later) {
  for (const auto& [name, found] : later) texts[name] = found;
}

/// Of a flag that is given several times the last counts; those that hold several options add up.
std::string text_of(const std::string& name, const CLI::Option& option) {
  if (name != "ddp" && name != "fsdp") return option.results().back();
  options::RawOptions pairs;
  for (const auto& text : option.results())
    if (!text.empty()) add_later(pairs, options::split_pairs(text, "flag --" + name, "", "MU196"));
  std::string result;
  for (const auto& [key, found] : pairs) result += (result.empty() ? "" : ",") + key + "=" + found.text;
  return result;
}

options::Sources read_sources(const Flags& flags) {
  const auto known = all_options();
  options::Sources sources;
  sources.variables = Environment::of_process();
  const auto config =
      flags.config_given->count() > 0 ? flags.config : sources.variables.find(kConfigVariable).value_or("");
  if (flags.config_given->count() > 0 || !config.empty())
    sources.file = read_config(config, run_option_table().section, known);
  for (const auto& [name, option] : flags.given)
    if (option->count() > 0) sources.flags[name] = text_of(name, *option);
  for (const auto& line : flags.given.at("options")->results())
    add_later(sources.flag_line, options::without_aliases(known, options::read_line(line, "flag --options")));
  sources.line = options::read_line(sources.variables.find(options::kLineVariable).value_or(""));
  sources.file = sources.file.changed(run_option_table().section, expand_line);
  return sources;
}

/// The launcher's options, with what the ranks get in one line. What every rank would refuse is refused before any
/// starts.
RunOptions read_options(const Flags& flags) {
  const auto& table = run_option_table();
  const auto sources = read_sources(flags);
  auto texts = runtime::find_given_options(sources, table.section, table.descriptions());
  add_place_of_node(sources.variables, texts);
  auto options = options::read_texts(table, texts).values;
  for (const auto& option : table.descriptions())
    if (option.name != "accelerator") texts.erase(option.name);
  runtime::check_given_options(texts);
  options.options = options::write_line(texts);
  // The ranks would not know the launcher's own options in the line that they inherit.
  if (texts.empty()) options.options = "{}";
  return options;
}

}  // namespace

int run(const Arguments& arguments) {
  CLI::App app(
      "Starts a program on several ranks of this node, watches them and passes their output on.\n"
      "The words in [] are defaults, those in {} environment variables. A flag counts more than MUSTER_OPTIONS, that "
      "more than a single variable, and a variable more than the file. Of a flag that is given twice the last counts; "
      "--options, --ddp and --fsdp add up. In a list, an item with a comma stands in double quotes: '\"a{1,2}\",b'.",
      "muster run");
  app.prefix_command();
  Flags flags;
  add_all_flags(app, flags);
  Arguments program;
  try {
    const auto words = with_values(arguments, all_flags());
    parse_flags(app, words);
    program = program_of(app, words);
  } catch (const CLI::CallForHelp&) {
    std::string text = app.help(), options = "[OPTIONS]";
    std::puts(text.replace(text.find(options), options.size(), options + " PROGRAM [ARGUMENTS]").c_str());
    return 0;
  }
  return muster::run(read_options(flags), program);
}

}  // namespace muster::cli
