#include <exception>
#include <random>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "comm/agreement.h"
#include "format/checksum.h"
#include "format/json.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/options.h"
#include "muster/comm/communicator.h"
#include "rank_save_plan.h"
#include "save_target.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using format::Json;

/// Runs `action`, and converts its exceptions to a CheckpointError whose message begins with `prefix`.
template <class Action>
void as_checkpoint_error(const std::string& prefix, Action&& action) {
  try {
    action();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw CheckpointError(error.id(), prefix + error.message());
  } catch (const std::exception& error) {
    throw CheckpointError("MU202", prefix + "nothing was saved: " + error.what());
  }
}

/// Throws the failure on all ranks alike.
void raise(const comm::Failure& failure) {
  throw CheckpointError(failure.id.empty() ? "MU202" : failure.id, failure.message);
}

/// The message of another rank under this name. Throws: CheckpointError (MU210) if it is missing or of another kind.
template <class T>
const T& field(const Json* value, const char* name) {
  const T* held = value ? value->get<T>() : nullptr;
  if (!held)
    throw CheckpointError(
        "MU210", std::string("a message between ranks has no '") + name + "': do all ranks run the same build?");
  return *held;
}
template <class T>
const T& field(const Json& message, const char* name) {
  return field<T>(message.find(name), name);
}

Json parse_message(const std::string& text) { return format::parse_json(text, "a message between ranks", "MU210"); }

Json json_of(const format::ShardEntry& shard) {
  Json::List shape;
  for (const std::int64_t size : shard.shape) shape.emplace_back(size);
  return Json::List{shard.name, shard.dtype, std::move(shape), shard.begin, shard.count};
}

format::ShardEntry shard_of(const Json& json, int rank) {
  const auto& fields = field<Json::List>(&json, "shard");
  const auto at = [&](std::size_t i) { return i < fields.size() ? &fields[i] : nullptr; };
  format::ShardEntry shard;
  shard.name = field<std::string>(at(0), "name");
  shard.dtype = field<std::string>(at(1), "dtype");
  for (const Json& size : field<Json::List>(at(2), "shape")) shard.shape.push_back(field<std::int64_t>(&size, "size"));
  shard.begin = field<std::int64_t>(at(3), "begin");
  shard.count = field<std::int64_t>(at(4), "count");
  shard.rank = rank;
  return shard;
}

Json report_of(const format::FileMark& mark, const std::vector<format::ShardEntry>& shards) {
  Json::List list;
  for (const format::ShardEntry& shard : shards) list.push_back(json_of(shard));
  return Json::Map{{"bytes", static_cast<std::int64_t>(mark.bytes)},
                   {"checksum", format::to_hex(mark.checksum)},
                   {"slices", std::move(list)}};
}

std::uint64_t checksum_in(const Json& report) {
  const auto checksum = format::from_hex(field<std::string>(report, "checksum"));
  if (!checksum)
    throw CheckpointError("MU210", "a message between ranks has no 'checksum': do all ranks run the same build?");
  return *checksum;
}

const char* kind_of_place(bool has_storage) { return has_storage ? "a custom storage" : "a folder"; }

void check_kind(const std::string& on_rank_0, bool has_storage) {
  if (on_rank_0 != kind_of_place(has_storage))
    throw CheckpointError("MU316", std::string("this rank saves to ") + kind_of_place(has_storage) + " and rank 0 to " +
                                       on_rank_0 + "; nothing was saved. Give all ranks the same storage");
}

/// Writes the manifest of what the ranks report, and publishes the checkpoint.
void publish(SaveTarget& target, const std::string& id, const std::vector<std::string>& reports) {
  format::Manifest manifest{.id = id, .indexes = {}};
  std::vector<format::ShardEntry> shards;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Json report = parse_message(reports[rank]);
    manifest.indexes.push_back({static_cast<std::uint64_t>(field<std::int64_t>(report, "bytes")), checksum_in(report)});
    for (const Json& part : field<Json::List>(report, "slices"))
      shards.push_back(shard_of(part, static_cast<int>(rank)));
  }
  format::check_shards(std::move(shards), target.path().string());
  const auto file = target.create(target.part(), std::string(format::kManifestName));
  const std::string text = format::to_text(manifest);
  file->write(std::array{std::string_view(text)});
  file->publish();
  target.publish();
}

/// Called by publish_together() on each rank: writes the rank's files, which `create` creates, marked with `id`, and
/// returns the mark of its index.
using WriteRank = std::function<format::FileMark(const CreateFile& create, const std::string& id)>;

/// Rank 0 opens the target of the options; each rank writes its files; rank 0 checks all reports, writes the manifest
/// and publishes the checkpoint. Returns the path of the checkpoint. `shards` are this rank's shards, which write_rank
/// may fill in.
/// Throws: as write_checkpoint, on all ranks alike.
/// Collective: every rank of the group.
fs::path publish_together(const fs::path& folder, const comm::Communicator& group,
                          const WriteCheckpointOptions& options, const WriteRank& write_rank,
                          const std::vector<format::ShardEntry>& shards) {
  const auto target = make_target(options);
  const auto lead = [&](const char* label, const auto& action) {
    const auto run = [&] {
      std::string said;
      as_checkpoint_error("", [&] { said = action(); });
      return said;
    };
    return comm::broadcast_result(group, label, run, raise);
  };
  const Json start = parse_message(lead("where rank 0 saves a checkpoint", [&] {
    std::random_device device;
    const std::string id = format::to_hex(std::uint64_t{device()} << 32 | device());
    target->open(folder, id);
    return format::to_text(Json::Map{{"part", target->part()},
                                     {"path", target->path().string()},
                                     {"id", id},
                                     {"to", kind_of_place(options.storage != nullptr)}});
  }));
  const auto& id = field<std::string>(start, "id");
  format::FileMark mark;
  const auto write = [&] {
    as_checkpoint_error(group.size() > 1 ? "rank " + std::to_string(group.rank()) + ": " : "", [&] {
      check_kind(field<std::string>(start, "to"), options.storage != nullptr);
      mark = write_rank(
          [&](const std::string& file) { return target->create(field<std::string>(start, "part"), file); }, id);
    });
    return std::string();
  };
  comm::all_gather_result(group, "writing the files of a checkpoint", write, raise);
  const auto texts =
      group.internal("reports of a checkpoint's files").gather_bytes(format::to_text(report_of(mark, shards)));
  lead("whether rank 0 published a checkpoint", [&] {
    publish(*target, id, texts);
    return std::string();
  });
  return field<std::string>(start, "path");
}

}  // namespace
}  // namespace muster::checkpoint

namespace muster {

std::filesystem::path write_checkpoint(const CheckpointContents& contents, const std::filesystem::path& folder,
                                       const comm::Communicator& group, const WriteCheckpointOptions& options) {
  checkpoint::RankSavePlan plan;
  const auto write_rank = [&](const checkpoint::CreateFile& create, const std::string& id) {
    auto planned = checkpoint::plan_rank(contents, group.rank(), folder);
    const auto mark = checkpoint::write_rank(planned, nullptr, create, group.rank(), id, [] { return true; });
    plan.shards = std::move(planned.shards);
    return mark;
  };
  return checkpoint::publish_together(folder, group, options, write_rank, plan.shards);
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void raise_later(const std::exception_ptr& failure, const fs::path& folder) {
  try {
    std::rethrow_exception(failure);
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.id(),
                          "the save to " + folder.string() + " that was started earlier failed: " + error.message());
  }
}

}  // namespace

class CheckpointWriter::Worker {
 public:
  Worker(const comm::Communicator& group, const WriteCheckpointOptions& options)
      : rank_(group.rank()), group_(group.internal("a checkpoint writer").duplicate()), options_(options) {}

  ~Worker() {
    if (!thread_.joinable()) return;
    {
      base::Lock lock(mutex_);
      if (!ended_.wait_for(lock, group_.timeout(), [this]() MUSTER_REQUIRES(mutex_) { return !busy_; })) {
        gives_up_ = true;
        group_.abort("the writer of checkpoints ended before its save was done");
      }
    }
    thread_.join();
    if (failure_) log_failure();
  }

  void start(const CheckpointContents& contents, const fs::path& folder) {
    wait();
    folder_ = folder;
    unplanned_ = nullptr;
    try {
      plan_ = checkpoint::plan_rank(contents, rank_, folder);
      buffer_.take(plan_);
    } catch (...) {
      unplanned_ = std::current_exception();  // the other ranks have started, so the writer's thread reports it
    }
    {
      const base::Lock lock(mutex_);
      busy_ = true;
    }
    thread_ = std::thread([this] { run(); });
  }

  fs::path wait() {
    if (thread_.joinable()) thread_.join();
    if (failure_) raise_later(std::exchange(failure_, nullptr), folder_);
    return path_;
  }

  std::uint64_t staging_bytes() const { return buffer_.memory_bytes(); }

  bool busy() const {
    const base::Lock lock(mutex_);
    return busy_;
  }

 private:
  void run() {
    const log::ThreadRank rank(rank_);
    fs::path path;
    std::exception_ptr failure;
    try {
      path = checkpoint::publish_together(
          folder_, group_, options_,
          [&](const checkpoint::CreateFile& create, const std::string& id) { return write(create, id); }, plan_.shards);
    } catch (...) {
      failure = std::current_exception();
    }
    const base::Lock lock(mutex_);
    if (!failure) path_ = path;
    failure_ = failure;
    busy_ = false;
    ended_.notify_all();
  }

  format::FileMark write(const checkpoint::CreateFile& create, const std::string& id) {
    if (unplanned_) std::rethrow_exception(unplanned_);
    return checkpoint::write_rank(plan_, &buffer_, create, rank_, id, [&] {
      const base::Lock lock(mutex_);
      return !gives_up_;
    });
  }

  void log_failure() const {
    try {
      raise_later(failure_, folder_);
    } catch (const std::exception& error) {
      log::error(error.what());
    }
  }

  int rank_;
  comm::Communicator group_;
  WriteCheckpointOptions options_;
  fs::path folder_, path_;
  checkpoint::RankSavePlan plan_;
  checkpoint::HostBuffer buffer_;
  std::exception_ptr unplanned_, failure_;
  mutable base::Mutex mutex_;
  bool busy_ MUSTER_GUARDED_BY(mutex_) = false;
  bool gives_up_ MUSTER_GUARDED_BY(mutex_) = false;
  base::Condition ended_;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(const comm::Communicator& group, const WriteCheckpointOptions& options)
    : worker_(std::make_unique<Worker>(group, options)) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::start(const CheckpointContents& contents, const fs::path& folder) {
  worker_->start(contents, folder);
}
fs::path CheckpointWriter::wait() { return worker_->wait(); }
bool CheckpointWriter::busy() const { return worker_->busy(); }
std::uint64_t CheckpointWriter::staging_bytes() const { return worker_->staging_bytes(); }

}  // namespace muster
