#pragma once

#include <vector>

#include "commands.h"
#include "muster/base/detail/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace muster::cli {

/// Parses the arguments after a subcommand's name into `app`; returns true if help was requested and printed.
/// Throws: UsageError MU006.
bool parse(CLI::App& app, const Arguments& arguments);

/// Prints the help of a subcommand that is followed by a program and its arguments.
void print_help_with_program(const CLI::App& app);

/// The flags of an application, except --help. A flag without a value has its negation `!--no-...` among its names, and
/// default_str("true") if it is on.
std::vector<options::Description> described(const CLI::App& app);

}  // namespace muster::cli
