#pragma once

#include "commands.h"

namespace CLI {
class App;
}

namespace muster::cli {

/// Parses what stands after a subcommand's name into `app`; true if help was asked for and printed.
/// Throws: UsageError MU006.
bool parse(CLI::App& app, const Arguments& arguments);

}  // namespace muster::cli
