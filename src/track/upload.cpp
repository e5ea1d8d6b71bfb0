#include "track/upload.h"

#include <thread>

#include "append_file.h"
#include "base/log.h"
#include "base/text.h"
#include "mlflow_delivery.h"
#include "mlflow_run.h"
#include "mlflow_server.h"
#include "muster/base/error.h"

namespace muster {
namespace track {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLinesAtOnce = std::size_t{1} << 20;  // bytes of lines that are read at a time
constexpr auto kUploadCall = std::chrono::seconds(30);      // time-out of one request
constexpr auto kUploadPause = std::chrono::milliseconds(250), kLongestUploadPause = std::chrono::milliseconds(5000);

MlflowRun run_of_folder(const fs::path& folder) {
  if (auto run = load_run(folder)) return *run;
  throw UsageError("MU537", "there is no mlflow.json in " + in_quotes(folder.string()) +
                                ", so it is the folder of no run that was logged to MLflow; give the folder that "
                                "trackers.folder() returns, such as logs/digits/version_0");
}

// MLFLOW_TRACKING_URI may have the password that mlflow.json lacks.
HttpServer server_of(const MlflowRun& run, const std::string& given, const Environment& variables) {
  if (!given.empty()) return mlflow_server(given, variables);
  if (const auto uri = variables.find("MLFLOW_TRACKING_URI");
      uri && without_credentials(*uri).starts_with(run.tracking_uri))
    if (auto server = mlflow_server(*uri, variables); server.uri == run.tracking_uri) return server;
  return mlflow_server(run.tracking_uri, variables);
}

UploadReport send_waiting(const fs::path& folder, MlflowRun run, HttpServer server, const UploadOptions& options) {
  UploadReport report;
  const AppendFile file(waiting_lines_path(folder), whole_lines);
  const std::atomic<bool> never{false};
  run.tracking_uri = server.uri;
  MlflowDelivery delivery(std::move(run), folder, MlflowClient(std::move(server), kUploadCall, &never), file.written());
  bool is_reported = false;
  // Repeats a step until it succeeds, with pauses after failures of the server.
  const auto repeat = [&](const auto& step) {
    auto pause = kUploadPause;
    for (const auto begin = Clock::now();; pause = std::min(2 * pause, kLongestUploadPause)) {
      try {
        return step();
      } catch (const MlflowError& error) {
        if (Clock::now() - begin >= options.timeout)
          throw Error("MU538", std::string("MLflow does not take what waits in ") + in_quotes(folder.string()) + " (" +
                                   error.what() + "); what it has is noted, and the same command goes on from there");
        if (!std::exchange(is_reported, true))
          log::warning("MU533", ": MLflow cannot be used (", error.what(), "); trying again");
      }
      std::this_thread::sleep_for(pause);
    }
  };
  repeat([&] { delivery.open(false); });
  while (delivery.run().sent < file.written()) {
    const auto begin = delivery.run().sent;
    const auto lines = file.read_lines(begin, kLinesAtOnce);
    if (lines.empty()) throw Error("MU538", "the file " + in_quotes(file.path().string()) + " cannot be read");
    repeat([&] { delivery.send(lines); });
    const auto sent = std::string_view(lines).substr(0, delivery.run().sent - begin);
    report.lines += std::count(sent.begin(), sent.end(), '\n');
  }
  repeat([&] { delivery.end_killed(); });
  report.refused = delivery.refused();
  report.run_id = delivery.run().run_id;
  report.tracking_uri = delivery.run().tracking_uri;
  return report;
}

}  // namespace
}  // namespace track

UploadReport upload_run(const std::filesystem::path& folder, const UploadOptions& options,
                        const Environment& variables) {
  auto run = track::run_of_folder(folder);
  const auto waiting = track::waiting_lines_path(folder);
  std::error_code ignored;
  if (!std::filesystem::exists(waiting, ignored)) return {.run_id = run.run_id, .tracking_uri = run.tracking_uri};
  auto server = track::server_of(run, options.tracking_uri, variables);
  try {
    auto report = track::send_waiting(folder, std::move(run), std::move(server), options);
    std::filesystem::remove(waiting, ignored);
    return report;
  } catch (const ConfigError& error) {
    if (error.id() != "MU421") throw;
    throw UsageError("MU537", "what waits in " + in_quotes(folder.string()) +
                                  " cannot be opened; a program that still runs sends it itself (" + error.what() +
                                  ")");
  }
}

}  // namespace muster
