#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "accelerate_file.h"
#include "commands.h"
#include "config_questions.h"
#include "config_show.h"
#include "config_writer.h"
#include "launch_call.h"
#include "launcher/devices.h"
#include "muster/base/error.h"
#include "options/launcher_fields.h"
#include "parse.h"

namespace muster::cli {
namespace {

/// The keys of the file that `muster config --default` writes, for the accelerators of this machine.
ConfigKeys default_keys(const Environment& variables, const std::string& precision) {
  const int accelerators = launcher::count_accelerators(variables);
  ConfigKeys keys{{"num_machines", "1"}, {"num_processes", std::to_string(std::max(1, accelerators))}};
  if (accelerators == 0) keys.emplace_back("use_cpu", "true");
  if (precision != "no") keys.emplace_back("mixed_precision", precision);
  return keys;
}

/// Refuses, before the file is written, keys that a launch would refuse.
void check_keys(const ConfigKeys& keys) {
  const auto known = all_options();
  ConfigFile config{.path = "the answers"};
  const auto& section = run_option_table().section;
  config.file = options::File::parse(config_text(keys), "the answers", section).changed(section, [&](auto& all) {
    config.accelerate = extract_accelerate(all, known);
  });
  options::Sources sources;
  add_file(sources, translated_config(config).file);
  run_options(given_options(sources));
}

struct ConfigCall {
  std::string file;
  bool use_default = false;
  std::string precision = "no";
};

int write_default(const ConfigCall& call, const Environment& variables) {
  const auto path = call.file.empty() ? user_config_path(variables) : call.file;
  if (std::filesystem::exists(path)) {
    std::fprintf(stderr, "muster: %s is there already and stays as it is; `muster config` asks again\n", path.c_str());
    return 0;
  }
  const auto keys = default_keys(variables, call.precision);
  check_keys(keys);
  write_config(path, keys);
  return std::printf("wrote %s\n", path.c_str()) < 0;
}

int ask_and_write(const ConfigCall& call, const Environment& variables) {
  const auto path = call.file.empty() ? user_config_path(variables) : call.file;
  const Questions questions;
  if (std::filesystem::exists(path) && !questions.confirm(path + " is there already. Replace it?", false))
    return std::puts("nothing was written") < 0;
  const auto keys = asked_keys(questions, launcher::count_accelerators(variables));
  check_keys(keys);
  write_config(path, keys);
  return std::printf("wrote %s; `muster launch PROGRAM` reads it\n", path.c_str()) < 0;
}

void declare(CLI::App& app, ConfigCall& call) {
  app.add_flag("--default,!--no-default,!--no_default", call.use_default,
               "no questions: the accelerators of this machine; never replaces a file");
  app.add_option("--config_file,--config-file", call.file, "the file to write [$XDG_CONFIG_HOME/muster/config.yaml]");
  app.add_option("--mixed_precision,--mixed-precision", call.precision, "with --default: no, fp16 or bf16 [no]");
}

void declare_all(CLI::App& app, bool& all) {
  app.add_flag("--all,!--no-all,!--no_all", all, "show: options at their default, too");
}

int write_or_ask(Arguments arguments, const Environment& variables) {
  ConfigCall call;
  if (!arguments.empty() && arguments.front() == "default") arguments.front() = "--default";
  CLI::App app(
      "Asks how to train on this machine, and writes the file that `muster launch` reads.\n"
      "muster config show [--all] [FLAGS]: what `muster launch FLAGS` would follow, and where each value comes from\n"
      "muster config update [--config_file FILE]: writes the file again with the keys of this version\n"
      "muster config path: the path of the file",
      "muster config");
  declare(app, call);
  if (parse(app, arguments)) return 0;
  return call.use_default ? write_default(call, variables) : ask_and_write(call, variables);
}

int show_call(const Arguments& arguments) {
  CLI::App app(
      "Prints what `muster launch` would follow with these flags: each option with its value and its source.\n"
      "Nothing is started.",
      "muster config show");
  bool all = false;
  declare_all(app, all);
  app.prefix_command();
  const LaunchFlags flags(app, arguments);
  try {
    parse_launch(app, arguments, "config show");
  } catch (const CLI::CallForHelp&) {
    return std::puts(app.help().c_str()) < 0;
  }
  const auto call = launch_sources(flags);
  print_notes(call.notes);
  show_config(call, all);
  return 0;
}

/// The keys of Muster's file unchanged, or Muster's keys for the values of another tool's file.
ConfigKeys updated_keys(const ConfigFile& config) {
  const auto& section = run_option_table().section;
  const auto translated = translated_config(config);
  print_notes(config.notes);
  print_notes(translated.notes);
  const bool is_ours = config.kind == FileKind::muster;
  ConfigKeys keys;
  if (is_ours)
    for (const auto& [name, found] : config.accelerate) keys.emplace_back(name, found.text);
  for (const auto& [name, found] : (is_ours ? config.file : translated.file).section(section))
    keys.emplace_back(name, found.text);
  return keys;
}

int update(const Arguments& arguments, const Environment& variables) {
  std::string file;
  CLI::App app(
      "Writes the configuration file again, with the keys of this version; comments are lost.\n"
      "A file of `accelerate config` or LightningCLI stays as it is: what it asks for is written into the user's file.",
      "muster config update");
  app.add_option("--config_file,--config-file", file, "the file to read [$XDG_CONFIG_HOME/muster/config.yaml]");
  if (parse(app, arguments)) return 0;
  const auto ours = user_config_path(variables);
  const auto config = read_config(file.empty() ? ours : file, run_option_table().section, all_options());
  const bool is_ours = config.kind == FileKind::muster;
  const auto path = is_ours ? config.path : ours;
  if (is_ours && !config.file.outside().empty())
    throw ConfigError("MU484", "'" + path + "' has keys beside section `run`, which would be lost; change it by hand");
  if (!is_ours && std::filesystem::exists(path))
    throw ConfigError("MU484", "'" + path + "' is there already and is not replaced by what " + config.path +
                                   " asks for; move it away first");
  const auto keys = updated_keys(config);
  check_keys(keys);
  write_config(path, keys);
  return std::printf("wrote %s\n", path.c_str()) < 0;
}

}  // namespace

std::vector<options::Description> config_flags() {
  CLI::App app;
  ConfigCall call;
  bool all = false;
  declare(app, call);
  declare_all(app, all);
  auto flags = described(app);
  for (auto& flag : LaunchFlags::all())
    if (std::none_of(flags.begin(), flags.end(), [&](const auto& one) { return one.flag() == flag.flag(); }))
      flags.push_back(std::move(flag));
  return flags;
}

int configure(const Arguments& arguments) {
  const auto variables = Environment::of_process();
  const auto is = [&](const char* name) { return !arguments.empty() && arguments.front() == name; };
  const Arguments rest(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
  if (is("show")) return show_call(rest);
  if (is("update")) return update(rest, variables);
  if (is("path")) return std::puts(user_config_path(variables).c_str()) < 0;
  if (!arguments.empty() && !arguments.front().starts_with("-") && !is("default"))
    throw UsageError("MU006", "muster config has no part '" + arguments.front() +
                                  "'; the known ones are show, update, path and default");
  return write_or_ask(arguments, variables);
}

}  // namespace muster::cli
