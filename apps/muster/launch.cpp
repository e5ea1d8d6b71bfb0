#include <cstdio>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/text.h"
#include "cluster/listening_socket.h"
#include "commands.h"
#include "launch_call.h"
#include "launcher/run.h"
#include "muster/base/error.h"
#include "parse.h"

namespace muster::cli {
namespace {

/// As in Accelerate, a port that is in use is replaced if all ranks are on one machine.
void replace_taken_port(RunOptions& options) {
  if (options.nodes != NodeRange(1) || options.main_port <= 0) return;
  try {
    cluster::ListeningSocket(options.main_port, "127.0.0.1");
  } catch (const LaunchError&) {
    std::fprintf(stderr, "muster: port %d is taken; the ranks rendezvous at a free one\n", options.main_port);
    options.main_port = 0;
  }
}

/// Prints the assumptions for values that nobody gave, so that a default of one rank is no surprise.
void print_assumptions(const options::RawOptions& given) {
  std::vector<std::string> assumed;
  for (const auto& [name, text] :
       {std::pair{"devices", "num_processes is the number of accelerators, or 1"},
        std::pair{"nodes", "num_machines is 1"}, std::pair{"precision", "mixed_precision is as the program says"}})
    if (!given.contains(name)) assumed.emplace_back(text);
  if (!assumed.empty())
    std::fprintf(stderr, "muster: there is no configuration file, so %s; `muster config` writes one\n",
                 joined(assumed).c_str());
}

}  // namespace

std::vector<options::Description> launch_flags() { return LaunchFlags::all(); }

int launch(const Arguments& arguments) {
  CLI::App app(
      "Starts a program as `muster run` does, by the flags and files of `accelerate launch`, with '-' or '_' in "
      "names.\n"
      "Reads --config_file, else what MUSTER_CONFIG names, else the file of `muster config`, else that of `accelerate "
      "config`. Precedence, highest first: flag, variable, file. The help shows the groups of the flags "
      "that stand before --help; the options of the program (muster run --help) are flags, too.",
      "muster launch");
  app.prefix_command();
  const LaunchFlags flags(app, arguments);
  Arguments program;
  try {
    program = parse_launch(app, arguments, "launch");
  } catch (const CLI::CallForHelp&) {
    print_help_with_program(app);
    return 0;
  }
  const auto call = launch_sources(flags);
  print_notes(call.notes);
  auto given = given_options(call.sources);
  if (call.path.empty() && !flags.theirs().contains("quiet")) print_assumptions(given);
  auto options = run_options(std::move(given));
  replace_taken_port(options);
  return muster::run(options, program);
}

}  // namespace muster::cli
