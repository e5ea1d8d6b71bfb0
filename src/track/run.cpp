#include "run.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "base/known_names.h"
#include "base/log.h"
#include "base/shown.h"
#include "muster/base/error.h"
#include "quiet_thread.h"
#include "track/file_trackers.h"
#include "track/named_trackers.h"
#include "track/record.h"
#include "track/run_folder.h"

namespace muster::track {

/// The data of the writing thread; it outlives a Run that stopped waiting for the disk.
struct Writing {
  Writing(std::size_t capacity, const std::filesystem::path& spill) : queue(capacity, spill) {
    std::error_code ignored;
    std::filesystem::remove(spill, ignored);  // left by a run that was killed
  }

  RecordQueue queue;
  std::vector<std::shared_ptr<Tracker>> trackers;
  std::vector<char> warned;  // one flag per tracker
  std::atomic<RunStatus> status{RunStatus::success};
};

namespace {

constexpr auto kGather = std::chrono::milliseconds(200);  // wait for more records before they are written

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class F>
void guarded(Writing& writing, std::size_t index, F&& f) {
  const auto warn = [&](const auto&... parts) {
    if (std::exchange(writing.warned[index], 1)) return;
    log::warning(parts...);
  };
  try {
    f(*writing.trackers[index]);
  } catch (const Error& error) {
    warn(error.what());
  } catch (const std::exception& error) {
    warn("MU426", ": the tracker ", in_quotes(writing.trackers[index]->name()), " failed (", error.what(),
         "); training goes on, and the tracker gets what is logged later");
  }
}

void hand_on(const Record& record, Tracker& tracker) {
  if (record.kind == Record::Kind::hyperparams) return tracker.log_hyperparams(record.values);
  if (record.kind == Record::Kind::artifact)
    for (const auto& copy : record.values) tracker.log_artifact(copy.name, std::get<std::string_view>(copy.data));
  else tracker.log({.step = record.step, .time = record.time, .values = record.values});
}

void write_records(Writing& writing) {
  std::string bytes;
  const auto count = writing.trackers.size();
  while (writing.queue.take(bytes, kGather)) {
    for (RecordReader reader(bytes); !reader.done();) {
      const auto& record = reader.next();
      for (std::size_t i = 0; i < count; ++i)
        if (record.only < 0 || record.only == static_cast<int>(i))
          guarded(writing, i, [&](Tracker& tracker) { hand_on(record, tracker); });
    }
    for (std::size_t i = 0; i < count; ++i) guarded(writing, i, [](Tracker& tracker) { tracker.flush(); });
    writing.queue.mark_written();
  }
  for (std::size_t i = 0; i < count; ++i)
    guarded(writing, i, [&](Tracker& tracker) { tracker.finish(writing.status); });
}

std::vector<LoggedValue> numbers_of(std::span<const LoggedValue> values) {
  std::vector<LoggedValue> numbers;
  for (const auto& value : values) numbers.push_back(value.read());
  return numbers;
}

void check(const LoggedValue& value) {
  if (value.name.empty()) throw UsageError("MU423", "a logged value has no name; give it one, such as \"loss\"");
  if (const auto* image = std::get_if<PngImage>(&value.data)) png_size(*image);
}

std::vector<std::string> names_of(const Writing& writing) {
  std::vector<std::string> names;
  for (const auto& tracker : writing.trackers) names.push_back(tracker->name());
  return names;
}

}  // namespace

Run::Run(const TrackersOptions& options)
    : timeout_(options.timeout), exceptions_before_(std::uncaught_exceptions()), process_(::getpid()) {
  for (const auto& choice : options.log_with)  // checked before the folder is created
    if (const auto* name = std::get_if<std::string>(&choice)) check_tracker(*name, options);
  folder_ = make_run_folder({.name = options.name, .root = options.root, .version = options.version});
  writing_ = std::make_shared<Writing>(options.capacity, folder_ / "waiting.records");
  for (const auto& choice : options.log_with) {
    const auto* name = std::get_if<std::string>(&choice);
    auto tracker = name ? make_tracker(*name, folder_, options) : std::get<std::shared_ptr<Tracker>>(choice);
    if (tracker) writing_->trackers.push_back(std::move(tracker));
  }
  writing_->trackers.push_back(std::make_shared<HyperparamsFile>(folder_));
  writing_->warned.resize(writing_->trackers.size());
  std::packaged_task<void()> task([writing = writing_] { write_records(*writing); });
  ended_ = task.get_future();
  thread_ = quiet_thread(std::move(task));
}

Run::~Run() { finish(std::uncaught_exceptions() > exceptions_before_ ? RunStatus::failed : RunStatus::success); }

// A child of fork() does not have the writing thread.
bool Run::is_elsewhere() const { return ::getpid() != process_; }

void Run::add(Record::Kind kind, int only, std::span<const LoggedValue> values, std::optional<int64_t> step) {
  for (const auto& value : values) check(value);
  if (is_elsewhere()) return;
  if (std::any_of(values.begin(), values.end(), [](const LoggedValue& value) { return value.is_tensor(); }))
    return add(kind, only, numbers_of(values), step);
  const Record head{
      .kind = kind, .only = only, .step = step ? *step : next_step_++, .time = seconds_now(), .values = {}};
  thread_local std::string bytes;
  bytes.clear();
  encode(head, values, bytes);
  if (!writing_->queue.push(bytes))
    throw UsageError("MU424", "values are logged after the end of the run; log before finish() or end_training()");
}

void Run::add_artifact(int only, const std::filesystem::path& file, const std::string& name) {
  if (is_elsewhere()) return;
  const auto shown = name.empty() ? file.filename().string() : name;
  const auto copy = copy_artifact(file, folder_, shown);
  const LoggedValue value(shown, std::string_view(copy.native()));
  add(Record::Kind::artifact, only, {&value, 1}, 0);
}

int Run::index_of(std::string_view name) const {
  auto names = names_of(*writing_);
  names.pop_back();  // not hparams.yaml
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<int>(i);
  throw ConfigError("MU420", "the run has no tracker " + in_quotes(name) + known_names(name, names));
}

bool Run::flush() { return is_elsewhere() || writing_->queue.wait_until_written(timeout_); }

void Run::finish(RunStatus status) { finish(status, timeout_); }

void Run::finish(RunStatus status, std::chrono::milliseconds timeout) {
  if (is_elsewhere()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  std::lock_guard lock(ending_);
  if (!thread_.joinable() || thread_.get_id() == std::this_thread::get_id()) return;
  writing_->status = status;
  writing_->queue.close();
  if (ended_.wait_for(timeout) == std::future_status::ready) {
    thread_.join();
  } else {
    log::warning("MU422", ": values that were logged are not written ", timeout.count(),
                 " ms after the end of the run in ", folder_.string(),
                 "; what is not written when the program ends is lost");
    thread_.detach();
  }
  if (const auto lost = writing_->queue.dropped(); lost > 0)
    log::warning("MU422", ": ", lost, " calls of log() are lost in the run in ", folder_.string());
}

}  // namespace muster::track
