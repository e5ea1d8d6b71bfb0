#include "mlflow_tracker.h"

#include "base/log.h"
#include "base/signals.h"
#include "base/text.h"
#include "mlflow_server.h"
#include "muster/base/error.h"

namespace muster::track {
namespace {

constexpr std::size_t kMostLines = std::size_t{1} << 20;  // bytes of lines that are read at a time
constexpr uint64_t kWorthClearing = uint64_t{1} << 20;    // size in bytes from which a sent file is emptied

MlflowDelivery delivery_for(const std::filesystem::path& folder, const TrackersOptions& options,
                            const Environment& variables, const AppendFile& file, std::chrono::milliseconds timeout,
                            const std::atomic<bool>* stop) {
  auto server = mlflow_server(options.mlflow.tracking_uri, variables);
  const bool is_new = !load_run(folder);
  auto run = continued_run(folder, new_run(folder, options, server.uri, variables));
  return {std::move(run), folder, MlflowClient(std::move(server), timeout, stop),
          is_new ? std::nullopt : std::optional(file.written())};
}

}  // namespace

void check_mlflow(const TrackersOptions& options, const Environment& variables) {
  const std::atomic<bool> never{false};
  const HttpConnection connection(mlflow_server(options.mlflow.tracking_uri, variables), {}, &never);
  new_run({}, options, connection.server().uri, variables);
}

MlflowTracker::MlflowTracker(const std::filesystem::path& folder, const TrackersOptions& options,
                             const Environment& variables, MlflowTimes times)
    : folder_(folder), times_(times), file_(waiting_lines_path(folder), whole_lines),
      delivery_(delivery_for(folder, options, variables, file_, times.call, &stop_)) {
  thread_ = quiet_thread([this] { send_all(); });
}

void MlflowTracker::log_hyperparams(std::span<const LoggedValue> values) {
  for (const auto& line : param_lines(values, notice())) add(line);
}

void MlflowTracker::log(const LoggedStep& step) {
  for (const auto& line : metric_lines(step, notice())) add(line);
  for (const auto& value : step.values)
    if (std::holds_alternative<PngImage>(value.data)) add_image(value, step.step);
}

void MlflowTracker::log_artifact(std::string_view name, const std::filesystem::path&) { add(artifact_line(name)); }

void MlflowTracker::add_image(const LoggedValue& image, int64_t step) {
  const auto name = "images/" + mlflow_name(image.name) + "/" + std::to_string(step) + ".png";
  const auto path = folder_ / "artifacts" / name;
  const auto bytes = std::get<PngImage>(image.data).bytes;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) refuse_write(path, error.message());
  replace_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  add(artifact_line(name));
}

void MlflowTracker::add(const std::string& line) {
  base::Lock lock(mutex_);
  file_.add(line);
}

void MlflowTracker::flush() {
  base::Lock lock(mutex_);
  changed_.notify_all();
  file_.flush();
}

void MlflowTracker::finish(RunStatus status) {
  try {
    add(status_line(status == RunStatus::success ? "FINISHED" : "FAILED"));
    flush();
  } catch (const Error& error) {
    log::warning(error.what());
  }
  const bool sent = wait_until_sent();
  stop();
  const auto waiting = waiting_lines_path(folder_);
  std::error_code ignored;
  if (sent) std::filesystem::remove(waiting, ignored);
  else
    log::warning("MU534", ": what was logged and is not at MLflow ", times_.at_end.count(),
                 " ms after the end of the run waits in ", in_quotes(waiting.string(), 4096),
                 "; to send it: muster track upload ",
                 in_quotes(std::filesystem::absolute(folder_, ignored).string(), 4096));
  if (delivery_.refused() > 1)
    log::warning("MU535", ": MLflow did not take ", delivery_.refused(), " values and files of the run in ",
                 folder_.string());
}

bool MlflowTracker::has_sent_all() const { return sent_end_ == file_.size(); }

bool MlflowTracker::wait_until_sent() {
  base::Lock lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
  return sent_.wait_for(lock, times_.at_end, [this]() MUSTER_REQUIRES(mutex_) { return has_sent_all(); });
}

void MlflowTracker::stop() {
  {
    base::Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MlflowTracker::send_all() {
  auto pause = times_.first_pause;
  base::Lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this]() MUSTER_REQUIRES(mutex_) { return stop_ || !sent_end_ || sent_end_ < file_.written(); });
    if (stop_) return;
    const auto begin = delivery_.run().sent;
    const auto lines = file_.read_lines(begin, kMostLines);
    const bool is_unreadable = lines.empty() && begin < file_.written();
    lock.unlock();
    auto failure = failure_of_sending(lines);
    if (failure.empty() && is_unreadable) failure = "what waits cannot be read";
    lock.lock();
    if (delivery_.is_open()) sent_end_ = delivery_.run().sent;
    if (failure.empty()) {
      pause = times_.first_pause;
      if (has_sent_all()) sent_.notify_all();
      clear_what_is_sent();
      continue;
    }
    if (!stop_) report_failure(failure);
    changed_.wait_for(lock, pause, [this]() MUSTER_REQUIRES(mutex_) { return stop_ || hurry_; });
    pause = std::exchange(hurry_, false) ? times_.first_pause : std::min(2 * pause, times_.longest_pause);
  }
}

/// Keeps the file of a long run small.
void MlflowTracker::clear_what_is_sent() {
  if (sent_end_ < kWorthClearing || sent_end_ != file_.written()) return;
  try {
    file_.clear();
    delivery_.start_over();
  } catch (const Error&) {}  // tried again after the next lines
  sent_end_ = delivery_.run().sent;
}

/// Sends the lines. Returns why they could not be sent; empty on success.
std::string MlflowTracker::failure_of_sending(std::string_view lines) {
  try {
    delivery_.open(true);
    if (!lines.empty()) delivery_.send(lines);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void MlflowTracker::report_failure(const std::string& reason) {
  if (std::exchange(reported_, true)) return;
  log::warning("MU533", ": MLflow at ", in_quotes(delivery_.server().uri), " cannot be used (", reason,
               "); what is logged waits in ", in_quotes(waiting_lines_path(folder_).string(), 4096),
               " until it can, and training goes on");
}

Notice MlflowTracker::notice() {
  return [this](std::string_view kind, const std::string& sentence) {
    if (noticed_.emplace(kind).second) log::warning("MU539", ": ", sentence);
  };
}

}  // namespace muster::track
