#include "parse.h"

#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "muster/base/error.h"

namespace muster::cli {

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

}  // namespace muster::cli
