#include "launch_call.h"

#include <algorithm>
#include <filesystem>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "accelerate_file.h"
#include "accelerate_names.h"
#include "base/text.h"
#include "foreign_flags.h"
#include "options/launcher_fields.h"

namespace muster::cli {
namespace {

constexpr Group kGroups[] = {Group::general,     Group::hardware, Group::resources, Group::paradigm, Group::distributed,
                             Group::parallelism, Group::fsdp,     Group::deepspeed, Group::mpi,      Group::megatron,
                             Group::fp8,         Group::tpu,      Group::aws};

/// The flag that makes the help of a group relevant; "" for a group that is always shown.
std::string_view shown_with(Group group) {
  using enum Group;
  switch (group) {
    case parallelism: return "use_parallelism_config";
    case fsdp: return "use_fsdp";
    case deepspeed: return "use_deepspeed";
    case megatron: return "use_megatron_lm";
    case fp8: return "fp8";
    case tpu: return "tpu";
    case aws: return "aws";
    case mpi: return "cpu";
    default: return "";
  }
}

bool is_shown(Group group, const Arguments& arguments) {
  const auto wanted = shown_with(group);
  return wanted.empty() || std::any_of(arguments.begin(), arguments.end(), [&](std::string word) {
           std::replace(word.begin(), word.end(), '-', '_');
           return word.find(wanted) != std::string::npos;
         });
}

options::Description file_flag() { return {.name = "config", .help = "as --config_file"}; }

/// Adds Accelerate's one-letter flags: "-q,--quiet".
void add_letters(CLI::App& app, Flags& flags) {
  for (const auto& [letter, name] : {std::pair{"-q", "quiet"}, std::pair{"-m", "module"}})
    flags.given[letter] = app.add_flag(letter, flags.texts.emplace_back(), std::string("as --") + name)->group("");
  flags.given["-t"] = app.add_option("-t", flags.texts.emplace_back(), "as --tee")->group("");
}

std::string home_of(const Environment& variables) { return variables.find("HOME").value_or("/"); }

std::string without_tilde(const std::string& path, const Environment& variables) {
  return path == "~" || path.starts_with("~/") ? home_of(variables) + path.substr(1) : path;
}

/// The path of the configuration file; "" if there is none.
std::string chosen_file(const LaunchFlags& flags, const options::RawOptions& theirs, const Environment& variables) {
  if (const auto given = theirs.find("config_file"); given != theirs.end()) return given->second.text;
  if (const auto ours = flags.ours().given.find("config");
      ours != flags.ours().given.end() && ours->second->count() > 0)
    return ours->second->results().back();
  if (const auto named = variables.find("MUSTER_CONFIG")) return *named;
  for (const auto& path : {user_config_path(variables), accelerate_config_path(variables)})
    if (std::filesystem::exists(path)) return path;
  return "";
}

bool is_given(const options::RawOptions& theirs, const char* name) {
  const auto found = theirs.find(name);
  return found != theirs.end() && read_bool(found->second.text).value_or(false);
}

std::string words_for(FileKind kind) {
  switch (kind) {
    case FileKind::accelerate: return ", a file of `accelerate config`";
    case FileKind::lightning: return ", a file of LightningCLI";
    case FileKind::muster: break;
  }
  return "";
}

}  // namespace

LaunchFlags::LaunchFlags(CLI::App& app, const Arguments& arguments) {
  for (const auto group : kGroups)
    add_flags(app, is_shown(group, arguments) ? std::string(title_of(group)) : "", accelerate_flags(group), theirs_);
  add_letters(app, theirs_);
  add_flags(app, "Muster: the launcher", run_option_table().descriptions(), ours_);
  add_flags(app, "", {file_flag()}, ours_);
  add_flags(app, "", options_of_program(), ours_);
}

std::vector<options::Description> LaunchFlags::all() {
  std::vector<options::Description> flags;
  for (const auto group : kGroups)
    for (auto& flag : accelerate_flags(group)) flags.push_back(std::move(flag));
  for (auto& option : all_options()) {
    const auto flag = option.flag();
    if (std::none_of(flags.begin(), flags.end(), [&](const auto& one) { return one.flag() == flag; }))
      flags.push_back(std::move(option));
  }
  flags.push_back(file_flag());
  return flags;
}

options::RawOptions LaunchFlags::theirs() const {
  options::RawOptions texts;
  for (const auto& [key, option] : theirs_.given) {
    if (option->count() == 0) continue;
    const std::string name = key == "-q" ? "quiet" : key == "-m" ? "module" : key == "-t" ? "tee" : key;
    texts[name] = {option->results().back(), "flag --" + name};
  }
  return texts;
}

LaunchSources launch_sources(const LaunchFlags& flags) {
  LaunchSources result;
  result.sources = read_sources(flags.ours());
  result.sources.flags.erase("config");
  const auto theirs = flags.theirs();
  if (const auto note = note_without_effect(judge_variables(result.sources.variables)); !note.empty())
    result.notes.push_back(note);
  result.path = chosen_file(flags, theirs, result.sources.variables);
  const bool quiet = is_given(theirs, "quiet");
  const bool has_file = !result.path.empty() || theirs.contains("config_file");
  const auto config = has_file ? read_config(result.path, run_option_table().section, all_options()) : ConfigFile();
  result.kind = config.kind;
  if (has_file && !quiet) result.notes.push_back("reads " + result.path + words_for(config.kind));
  const auto translated = translated_config(config, theirs, own_choices(result.sources));
  for (const auto* notes : {&config.notes, &translated.notes})
    result.notes.insert(result.notes.end(), notes->begin(), notes->end());
  add_file(result.sources, translated.file);
  result.sources.flag_line.insert(translated.from_flags.begin(), translated.from_flags.end());
  return result;
}

Arguments parse_launch(CLI::App& app, const Arguments& arguments, std::string_view command) {
  const auto known = LaunchFlags::all();
  parse_flags(app, with_values(arguments, known), command);
  auto rest = app.remaining(true);
  if (rest.empty()) return rest;
  if (rest.front() == "--") return {rest.begin() + 1, rest.end()};
  if (rest.front().starts_with("-")) {
    std::vector<std::string> names;
    for (const auto& flag : known) names.push_back("--" + flag.name);
    refuse_flag(rest.front(), command, std::move(names));
  }
  return rest;
}

std::string user_config_path(const Environment& variables) {
  const auto folder = variables.find("XDG_CONFIG_HOME").value_or(home_of(variables) + "/.config");
  return folder + "/muster/config.yaml";
}

std::string accelerate_config_path(const Environment& variables) {
  const auto cache = variables.find("XDG_CACHE_HOME").value_or(home_of(variables) + "/.cache");
  const auto hub = variables.find("HF_HOME").value_or(cache + "/huggingface");
  return without_tilde(hub, variables) + "/accelerate/default_config.yaml";
}

}  // namespace muster::cli
