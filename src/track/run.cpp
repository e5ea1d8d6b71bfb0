#include "run.h"

#include <array>
#include <cstdlib>
#include <exception>
#include <future>

#include "append_file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/signals.h"
#include "base/text.h"
#include "file_trackers.h"
#include "mlflow_tracker.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "record.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStart = "version_";

[[noreturn]] void refuse(const fs::path& folder, const std::error_code& error) {
  throw ConfigError("MU421",
                    log::str("the folder ", in_quotes(folder.string()), " for the run's values cannot be made (",
                             error.message(), "); give another root"));
}

void check_inside(const char* option, const std::string& value) {
  if (track::leads_out(value))
    throw ConfigError("MU425", log::str(option, " ", in_quotes(value),
                                        " would lead out of the root; it is a relative path without '..'"));
}

/// N of "version_N"; -1 for any other name.
int64_t number_in(std::string_view name) {
  return name.starts_with(kStart) ? parse_number<int64_t>(name.substr(kStart.size())).value_or(-1) : -1;
}

int64_t next_version(const fs::path& folder) {
  int64_t highest = -1;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    highest = std::max(highest, number_in(entry->path().filename().string()));
  if (error) refuse(folder, error);
  return highest + 1;
}

/// Other names that Accelerate and Lightning know.
constexpr std::array<std::string_view, 10> kOthers{"aim",     "all",     "clearml", "comet",   "comet_ml",
                                                   "dvclive", "neptune", "swanlab", "trackio", "wandb"};

void refuse_others(std::string_view name) {
  if (std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end()) return;
  if (name == "all")
    throw ConfigError("MU531", "log_with takes no 'all'; name each tracker, such as \"csv\", \"mlflow\"");
  throw ConfigError("MU531",
                    "Muster has no tracker " + in_quotes(name) +
                        ": its service has no interface for C++. Log with 'mlflow', 'tensorboard', 'jsonl' or 'csv', "
                        "or write your own: a class that derives from muster::Tracker with the three functions "
                        "name(), log() and finish(), of which log_with takes an object");
}

}  // namespace

fs::path make_run_folder(const TrackersOptions& options) {
  check_inside("name", options.name);
  check_inside("version", options.version);
  const auto parent = options.name.empty() ? options.root : options.root / options.name;
  std::error_code error;
  fs::create_directories(options.version.empty() ? parent : parent / options.version, error);
  if (error) refuse(parent, error);
  if (!options.version.empty()) return parent / options.version;
  for (auto version = next_version(parent);; ++version) {
    const auto folder = parent / (std::string(kStart) + std::to_string(version));
    if (fs::create_directory(folder, error)) return folder;
    if (error) refuse(folder, error);
  }
}

std::vector<std::string> tracker_names() { return {"csv", "jsonl", "mlflow", "tensorboard"}; }

void check_tracker(std::string_view name, const TrackersOptions& options) {
  refuse_others(name);
  const auto names = tracker_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError("MU420", "there is no tracker " + in_quotes(name) + known_names(name, names) +
                                   "; or give an object of a class that derives from muster::Tracker");
  if (name == "mlflow") track::check_mlflow(options, Environment::of_process());
}

std::shared_ptr<Tracker> make_tracker(std::string_view name, const std::filesystem::path& folder,
                                      const TrackersOptions& options) {
  check_tracker(name, options);
  if (name == "csv") return std::make_shared<track::CsvTracker>(folder);
  if (name == "jsonl") return std::make_shared<track::JsonLinesTracker>(folder);
  if (name == "tensorboard") return std::make_shared<track::TensorBoardTracker>(folder);
  track::MlflowTimes times;
  times.at_end = std::min(times.at_end, options.timeout / 2);  // Run::finish() waits for all of it
  return std::make_shared<track::MlflowTracker>(folder, options, Environment::of_process(), times);
}

namespace track {

std::filesystem::path copy_artifact(const std::filesystem::path& file, const std::filesystem::path& folder,
                                    const std::string& name) {
  if (name.empty() || leads_out(name))
    throw ConfigError("MU457", log::str("the artifact ", in_quotes(file.string()), " cannot have the name ",
                                        in_quotes(name), "; give a relative path without '..'"));
  const auto copy = folder / "artifacts" / name;
  std::error_code error;
  std::filesystem::create_directories(copy.parent_path(), error);
  if (!error) std::filesystem::remove_all(copy, error);
  if (!error) std::filesystem::copy(file, copy, std::filesystem::copy_options::recursive, error);
  if (error)
    throw ConfigError(
        "MU457", log::str("the artifact ", in_quotes(file.string()), " cannot be copied to ", in_quotes(copy.string()),
                          " (", error.message(), "); give an existing file or folder, and a disk with room for it"));
  return copy;
}

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

void check(const LoggedValue& value) {
  if (value.name.empty()) throw UsageError("MU423", "a logged value has no name; give it one, such as \"loss\"");
  if (const auto* image = std::get_if<PngImage>(&value.data)) png_size(*image);
}

}  // namespace

/// The state that copies of a Trackers share: the run's folder, the queue, and the thread that passes records to the
/// trackers.
class Run {
 public:
  explicit Run(const TrackersOptions& options)
      : timeout_(options.timeout), exceptions_before_(std::uncaught_exceptions()), process_(::getpid()) {
    for (const auto& choice : options.log_with)  // checked before the folder is created
      if (const auto* name = std::get_if<std::string>(&choice)) check_tracker(*name, options);
    folder_ = make_run_folder(options);
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

  ~Run() { finish(std::uncaught_exceptions() > exceptions_before_ ? RunStatus::failed : RunStatus::success); }

  void add(Record::Kind kind, int only, std::span<const LoggedValue> values, std::optional<int64_t> step) {
    for (const auto& value : values) check(value);
    if (is_elsewhere()) return;
    if (std::any_of(values.begin(), values.end(), [](const LoggedValue& value) { return value.is_tensor(); }))
      return add(kind, only, read(values), step);
    const Record head{
        .kind = kind, .only = only, .step = step ? *step : next_step_++, .time = seconds_since_1970(), .values = {}};
    thread_local std::string bytes;
    bytes.clear();
    encode(head, values, bytes);
    if (!writing_->queue.push(bytes))
      throw UsageError("MU424", "values are logged after the end of the run; log before finish() or end_training()");
  }

  void add_artifact(int only, const std::filesystem::path& file, const std::string& name) {
    if (is_elsewhere()) return;
    const auto shown = name.empty() ? file.filename().string() : name;
    const auto copy = copy_artifact(file, folder_, shown);
    const LoggedValue value(shown, std::string_view(copy.native()));
    add(Record::Kind::artifact, only, {&value, 1}, 0);
  }

  int index_of(std::string_view name) const {
    std::vector<std::string> names;
    for (const auto& tracker : writing_->trackers) names.push_back(tracker->name());
    names.pop_back();  // not hparams.yaml
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return static_cast<int>(i);
    throw ConfigError("MU420", "the run has no tracker " + in_quotes(name) + known_names(name, names));
  }

  const std::filesystem::path& folder() const noexcept { return folder_; }

  bool flush() { return is_elsewhere() || writing_->queue.wait_until_written(timeout_); }

  /// Waits for at most the given time, or the time-out of the options.
  void finish(RunStatus status, std::optional<std::chrono::milliseconds> given = {}) {
    const auto timeout = given.value_or(timeout_);
    if (is_elsewhere()) {
      if (thread_.joinable()) thread_.detach();
      return;
    }
    base::Lock lock(ending_);
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

 private:
  // A child of fork() does not have the writing thread.
  bool is_elsewhere() const { return ::getpid() != process_; }

  static std::vector<LoggedValue> read(std::span<const LoggedValue> values) {
    std::vector<LoggedValue> numbers;
    for (const auto& value : values) numbers.push_back(value.read());
    return numbers;
  }

  std::filesystem::path folder_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Writing> writing_;
  std::atomic<int64_t> next_step_{0};
  const int exceptions_before_;
  const pid_t process_;
  base::Mutex ending_;
  std::future<void> ended_ MUSTER_GUARDED_BY(ending_);
  std::thread thread_;
};

namespace {

constexpr auto kAtExit = std::chrono::seconds(10);  // longest wait for each run

struct LiveRuns {
  base::Mutex mutex;
  std::vector<std::weak_ptr<Run>> runs MUSTER_GUARDED_BY(mutex);
  std::terminate_handler handler_before = nullptr;
};

// Never destroyed, since it is used at exit.
LiveRuns& live_runs() {
  static auto* const runs = new LiveRuns;
  return *runs;
}

void finish_all(RunStatus status) noexcept {
  std::vector<std::weak_ptr<Run>> runs;
  if (auto& live = live_runs(); live.mutex.try_lock()) {
    const base::Lock lock(live.mutex, std::adopt_lock);
    runs.swap(live.runs);
  }
  for (const auto& one : runs)
    if (const auto run = one.lock()) run->finish(status, kAtExit);
}

void finish_at_terminate() {
  finish_all(RunStatus::failed);
  if (const auto before = live_runs().handler_before) before();
  std::abort();
}

/// Makes the run finish when the process exits or an uncaught exception ends it: neither destroys the objects of
/// main().
void finish_at_exit(const std::shared_ptr<Run>& run) {
  auto& live = live_runs();
  base::Lock lock(live.mutex);
  if (!live.handler_before) live.handler_before = std::set_terminate(finish_at_terminate);
  // Registered again for each run, so that it runs before the exit handlers of libraries that its trackers have loaded
  // since, such as OpenSSL.
  std::atexit([] { finish_all(RunStatus::success); });
  std::erase_if(live.runs, [](const auto& one) { return one.expired(); });
  live.runs.push_back(run);
}

}  // namespace
}  // namespace track

Trackers::Trackers(const TrackersOptions& options) : run_(std::make_shared<track::Run>(options)) {
  track::finish_at_exit(run_);
}

void Trackers::add(std::span<const LoggedValue> values, std::optional<int64_t> step) const {
  if (run_) run_->add(track::Record::Kind::values, only_, values, step);
}

void Trackers::add_hyperparams(std::span<const LoggedValue> values) const {
  if (run_) run_->add(track::Record::Kind::hyperparams, only_, values, 0);
}

void Trackers::log_artifact(const std::filesystem::path& file, const std::string& name) const {
  if (run_) run_->add_artifact(only_, file, name);
}

Trackers Trackers::get_tracker(std::string_view name) const {
  auto one = *this;
  if (run_) one.only_ = run_->index_of(name);
  return one;
}

std::filesystem::path Trackers::folder() const { return run_ ? run_->folder() : std::filesystem::path(); }

bool Trackers::flush() const { return !run_ || run_->flush(); }

void Trackers::finish(RunStatus status) const {
  if (run_) run_->finish(status);
}

}  // namespace muster
