#include "run_flags.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "accelerate_names.h"
#include "base/options_text.h"
#include "base/text.h"
#include "foreign_flags.h"
#include "launcher/devices.h"
#include "muster/base/error.h"
#include "node_defaults.h"
#include "options/launcher_fields.h"
#include "options/program_options.h"

namespace muster::cli {
namespace {

using options::Description;

void add_spelling(std::vector<std::string>& all, std::string word, char from, char to) {
  std::replace(word.begin(), word.end(), from, to);
  word.insert(0, "--");
  if (std::find(all.begin(), all.end(), word) == all.end()) all.push_back(std::move(word));
}

std::string help_of(const Description& option) {
  std::string result = option.help;
  if (!option.unit.empty()) result += " (" + option.unit + ")";
  if (!option.default_text.empty()) result += " [" + option.default_text + "]";
  return result + (option.variable.empty() ? "" : " {" + option.variable + "}");
}

/// The spellings that the application does not have yet, as CLI11's list.
std::string free_spellings(const CLI::App& app, const Description& option) {
  std::string result;
  const auto add = [&](const std::string& word, const char* prefix) {
    if (app.get_option_no_throw(word)) return;
    result += (result.empty() ? "" : ",") + (prefix + word);
  };
  for (const auto& word : spellings(option)) add(word, "");
  if (result.empty() || !option.is_switch) return result;
  for (const auto& word : negations(option)) add(word, "!");
  return result;
}

/// In the file, a separate key overrides the same option in the one-line key `options`.
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

/// The text of an option. If a flag is repeated, the last one wins; flags that hold several options add up.
std::string text_of(const std::string& name, const CLI::Option& option) {
  if (name != "ddp" && name != "fsdp") return option.results().back();
  options::RawOptions pairs;
  for (const auto& text : option.results())
    if (!text.empty()) add_later(pairs, options::split_pairs(text, "flag --" + name, "", "MU196"));
  std::string result;
  for (const auto& [key, found] : pairs) result += (result.empty() ? "" : ",") + key + "=" + found.text;
  return result;
}

/// CLI11 inverts true and false and accepts any other word unchanged, so other words are refused here.
void refuse_value_of_negation(const std::string& argument) {
  const auto value = argument.find('=');
  bool on = false;
  if ((!argument.starts_with("--no-") && !argument.starts_with("--no_")) || value == std::string::npos ||
      options::Value<bool>::read(argument.substr(value + 1), on).empty())
    return;
  throw UsageError("MU006", argument + ": " + argument.substr(0, value) + " takes no value but true or false");
}

}  // namespace

std::vector<Description> options_of_program() {
  const auto ours = run_option_table().descriptions();
  std::vector<Description> all;
  for (const auto& option : runtime::program_options())
    if (!option.code_only && !options::find_option(ours, option.name)) all.push_back(option);
  return all;
}

std::vector<Description> all_options() {
  auto all = run_option_table().descriptions();
  for (auto& option : options_of_program()) all.push_back(std::move(option));
  return all;
}

std::vector<std::string> spellings(const Description& option) {
  std::vector<std::string> result;
  const auto name = option.flag().substr(2);
  add_spelling(result, name, '_', '-');
  add_spelling(result, name, '-', '_');
  for (const auto& alias : option.aliases)
    // nobody would type "ddp.rank" as a flag
    if (alias.find('.') == std::string::npos) {
      add_spelling(result, alias, '_', '-');
      add_spelling(result, alias, '-', '_');
    }
  return result;
}

std::vector<std::string> negations(const Description& option) {
  std::vector<std::string> result;
  const auto name = "no-" + option.flag().substr(2);
  add_spelling(result, name, '_', '-');
  add_spelling(result, name, '-', '_');
  return result;
}

void add_flags(CLI::App& app, const std::string& group, const std::vector<Description>& table, Flags& flags) {
  for (const auto& option : table) {
    const auto words = free_spellings(app, option);
    if (words.empty()) continue;
    auto& text = flags.texts.emplace_back();
    auto* added =
        option.is_switch ? app.add_flag(words, text, help_of(option)) : app.add_option(words, text, help_of(option));
    added->group(group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    flags.given[option.name] = added;
  }
}

void parse_flags(CLI::App& app, const Arguments& arguments, std::string_view command) {
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::CallForHelp*>(&error)) throw;
    throw UsageError("MU006", std::string(error.what()) + " (see muster " + std::string(command) + " --help)");
  }
  const auto end = arguments.end() - static_cast<std::ptrdiff_t>(app.remaining_size(/*recurse=*/true));
  std::for_each(arguments.begin(), end, refuse_value_of_negation);
}

void refuse_flag(const std::string& flag, std::string_view command, std::vector<std::string> known) {
  const auto here = our_name_for(flag);
  for (const auto& option : all_options()) known.push_back(option.flag());
  const auto nearest = nearest_name(flag.substr(0, flag.find('=')), known);
  const auto called = "muster " + std::string(command);
  const bool is_accelerates = command == "run" && find_accelerate_name(options::name_of_flag(flag));
  throw UsageError("MU006", called + " knows no flag '" + flag + "'" +
                                (!here.empty()      ? "; here it is " + here
                                 : !nearest.empty() ? "; nearest is '" + nearest + "'"
                                                    : "") +
                                (is_accelerates ? "; `muster launch` takes it as it is" : "") +
                                "; flags of the program stand after its name (see " + called + " --help)");
}

options::Sources read_sources(const Flags& flags) {
  options::Sources sources;
  sources.variables = Environment::of_process();
  for (const auto& [name, option] : flags.given)
    if (option->count() > 0) sources.flags[name] = text_of(name, *option);
  if (const auto lines = flags.given.find("options"); lines != flags.given.end())
    for (const auto& line : lines->second->results())
      add_later(sources.flag_line, options::without_aliases(all_options(), options::read_line(line, "flag --options")));
  sources.line = options::read_line(sources.variables.find(options::kLineVariable).value_or(""));
  return sources;
}

OwnChoices own_choices(const options::Sources& sources) {
  const auto text = [&](const char* name) -> std::optional<std::string> {
    if (const auto flag = sources.flags.find(name); flag != sources.flags.end()) return flag->second;
    for (const auto* line : {&sources.flag_line, &sources.line})
      if (const auto found = line->find(name); found != line->end()) return found->second.text;
    return sources.variables.find(options::variable_of(name));
  };
  OwnChoices own{
      .accelerator = text("accelerator").has_value(),
      .devices = text("devices").has_value(),
      .has_accelerators = text("accelerator") != "cpu" && launcher::count_accelerators(sources.variables) > 0,
      .strategy = text("strategy").has_value()};
  if (NodeRange nodes; options::Value<NodeRange>::read(text("nodes").value_or(""), nodes).empty())
    own.nodes = nodes.max;
  return own;
}

void add_file(options::Sources& sources, const options::File& file) {
  sources.file = file.changed(run_option_table().section, expand_line);
}

options::RawOptions given_options(const options::Sources& sources) {
  const auto& table = run_option_table();
  auto given = runtime::find_given_options(sources, table.section, table.descriptions());
  add_place_of_node(sources.variables, given);
  return given;
}

RunOptions run_options(options::RawOptions given) {
  const auto& table = run_option_table();
  auto options = options::read_texts(table, given).values;
  if (const auto devices = given.find("devices"); devices != given.end()) options.devices_place = devices->second.place;
  for (const auto& option : table.descriptions())
    if (option.name != "accelerator") given.erase(option.name);
  runtime::check_given_options(given);
  options.options = options::write_line(given);
  // The ranks would not understand the launcher's own options in an inherited line.
  if (given.empty()) options.options = "{}";
  return options;
}

void print_notes(const std::vector<std::string>& notes) {
  for (const auto& note : notes) std::fprintf(stderr, "muster: %s\n", note.c_str());
}

}  // namespace muster::cli
