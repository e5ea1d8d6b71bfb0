#include "parse.h"

#include <algorithm>
#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "muster/base/error.h"

namespace muster::cli {
namespace {

bool is_among(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

options::Description description_of(const CLI::Option& option) {
  options::Description flag{.help = option.get_description(), .default_text = option.get_default_str()};
  flag.is_switch = option.get_items_expected_max() == 0;
  for (const auto& name : option.get_lnames()) {
    if (is_among(option.get_fnames(), name)) continue;
    if (flag.name.empty()) flag.name = name;
    else flag.aliases.push_back(name);
  }
  return flag;
}

}  // namespace

bool parse(CLI::App& app, const Arguments& arguments) {
  for (auto* option : app.get_options([](const CLI::Option* one) { return !one->get_positional(); }))
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::puts(app.help().c_str());
    return true;
  } catch (const CLI::ParseError& error) {
    throw UsageError("MU006", std::string(error.what()) + " (see " + app.get_name() + " --help)");
  }
  return false;
}

void print_help_with_program(const CLI::App& app) {
  std::string text = app.help(), options = "[OPTIONS]";
  std::puts(text.replace(text.find(options), options.size(), options + " PROGRAM [ARGUMENTS]").c_str());
}

std::vector<options::Description> described(const CLI::App& app) {
  std::vector<options::Description> flags;
  for (const auto* option : app.get_options())
    if (!option->get_lnames().empty() && option != app.get_help_ptr()) flags.push_back(description_of(*option));
  return flags;
}

}  // namespace muster::cli
