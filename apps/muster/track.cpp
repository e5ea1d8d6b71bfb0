#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/text.h"
#include "commands.h"
#include "muster/base/error.h"
#include "parse.h"
#include "run_flags.h"
#include "track/upload.h"

namespace muster::cli {
namespace {

constexpr const char* kTrackHelp =
    "muster track upload RUN: sends to MLflow what waits in the folder of a run\n\n"
    "muster track upload --help lists the options.";

std::chrono::milliseconds read_timeout(const std::string& text, std::chrono::milliseconds time) {
  if (text.empty()) return time;
  if (const auto expected = options::Value<std::chrono::milliseconds>::read(text, time); !expected.empty())
    throw UsageError("MU006", "--timeout takes " + expected + ", not '" + text + "'");
  return time;
}

int upload(const Arguments& arguments) {
  CLI::App app(
      "Sends to MLflow what waits in the folder of a run whose program has ended. What is there already is not sent "
      "again.\nUser, password and token are taken from MLflow's variables, as by the program.",
      "muster track upload");
  std::string folder;
  Flags flags;
  app.add_option("RUN", folder, "folder of the run, such as logs/digits/version_0")->required();
  add_flags(app, "Options", track_flags(), flags);
  if (parse(app, arguments)) return 0;
  const auto text = [&](const char* name) {
    const auto& words = flags.given.at(name)->results();
    return words.empty() ? std::string() : words.back();
  };
  UploadOptions options;
  options.timeout = read_timeout(text("timeout"), options.timeout);
  options.tracking_uri = text("tracking_uri");
  std::signal(SIGPIPE, SIG_IGN);  // a server that closes a connection is an error of that call
  const auto report = upload_run(folder, options, Environment::of_process());
  const auto at = report.tracking_uri + ", run " + report.run_id;
  if (report.lines == 0) std::printf("nothing waits in %s: all of it is at %s\n", folder.c_str(), at.c_str());
  else std::printf("%s of %s sent to %s\n", counted(report.lines, "line").c_str(), folder.c_str(), at.c_str());
  if (report.refused > 0) std::printf("%s MLflow does not take\n", counted(report.refused, "value or file").c_str());
  return 0;
}

}  // namespace

std::vector<options::Description> track_flags() {
  return {{.name = "timeout", .help = "how long a server that cannot be used is asked", .default_text = "1min"},
          {.name = "tracking_uri", .help = "MLflow's server, if it has moved since the run"}};
}

int track(const Arguments& arguments) {
  const std::string part = arguments.empty() ? "--help" : arguments.front();
  if (part == "--help" || part == "-h") return std::puts(kTrackHelp) < 0 || arguments.empty() ? 2 : 0;
  if (part != "upload") throw UsageError("MU006", "muster track has no part '" + part + "'; it has upload");
  return upload({arguments.begin() + 1, arguments.end()});
}

}  // namespace muster::cli
