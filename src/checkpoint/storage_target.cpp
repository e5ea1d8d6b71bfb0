#include <optional>
#include <utility>

#include "base/log.h"
#include "checkpoint/numbered_folder.h"
#include "checkpoint/save_target.h"
#include "checkpoint/storage_calls.h"
#include "muster/base/error.h"
#include "muster/checkpoint/storage.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kId = "MU313";

// Why: docs/decisions/0087-checkpoints-in-a-storage-of-the-programs-own.md.

/// A rank's file that forwards everything to the custom storage's file.
class FileInStorage : public format::OutputFile {
 public:
  FileInStorage(std::unique_ptr<StorageFile> file, fs::path path) : file_(std::move(file)), path_(std::move(path)) {}

  const fs::path& path() const override { return path_; }
  void reserve(std::uint64_t) override {}
  void write(std::span<const std::string_view> pieces) override {
    for (const std::string_view piece : pieces)
      if (!piece.empty()) call_storage(kId, "write()", path_.generic_string(), [&] { file_->write(piece); });
  }
  void publish() override {
    call_storage(kId, "close()", path_.generic_string(), [&] { file_->close(); });
  }

 private:
  std::unique_ptr<StorageFile> file_;
  fs::path path_;
};

class StorageTarget : public SaveTarget {
 public:
  explicit StorageTarget(const WriteCheckpointOptions& options) : options_(options), storage_(*options.storage) {}

  ~StorageTarget() override {
    if (!is_open_) return;
    log_failure("discard()", save_.name, [&] { storage_.discard(save_); });
  }

  void open(const fs::path& path, const std::string& id) override {
    folder_ = storage_name(path);
    save_ = {.name = options_.numbered ? next_name() : folder_, .id = id};
    if (save_.name.empty())
      throw CheckpointError("MU317", "a checkpoint in the program's storage needs a name; nothing was saved");
    is_open_ = true;
    call_storage(kId, "begin()", save_.name, [&] { storage_.begin(save_); });
  }

  fs::path path() const override { return save_.name; }
  std::string part() const override { return save_.name + "@" + save_.id; }

  std::unique_ptr<format::OutputFile> create(const std::string& part, const std::string& file) const override {
    const auto at = part.rfind('@');
    const PendingCheckpoint save{.name = part.substr(0, at), .id = part.substr(at + 1)};
    const fs::path path = fs::path(save.name) / file;
    auto made = call_storage(kId, "create()", path.generic_string(), [&] { return storage_.create(save, file); });
    if (!made) refuse_storage(kId, "create()", path.generic_string(), "it returned no file");
    return std::make_unique<FileInStorage>(std::move(made), path);
  }

  void publish() override {
    // A commit that failed may have taken effect, and a committed checkpoint must not be discarded.
    is_open_ = false;
    call_storage(kId, "commit()", save_.name, [&] { storage_.commit(save_); });
    if (options_.numbered) log_failure("total_limit", folder_, [&] { remove_beyond_the_limit(); });
  }

 private:
  std::map<std::int64_t, fs::path> numbered() const { return numbered_in_storage(kId, folder_, storage_); }

  std::string next_name() const { return next_numbered(folder_, numbered()).generic_string(); }

  void remove_beyond_the_limit() const {
    const auto reason = [&](const fs::path& path) { return reason_to_keep(path, options_.storage); };
    const auto remove = [&](const fs::path& path) {
      const std::string name = path.generic_string();
      log_failure("remove()", name, [&] { storage_.remove(name); });
    };
    keep_highest(numbered(), options_.total_limit, reason, remove);
  }

  /// Logs errors instead of throwing: the checkpoint is saved, or has failed for a reason that takes precedence.
  template <class Action>
  static void log_failure(const char* function, const std::string& place, Action&& action) noexcept {
    try {
      action();
    } catch (const std::exception& error) {
      log::warning("the program's storage of checkpoints failed in ", function, " of ", place, ": ", error.what());
    } catch (...) {
      log::warning("the program's storage of checkpoints failed in ", function, " of ", place);
    }
  }

  WriteCheckpointOptions options_;
  CheckpointStorage& storage_;
  std::string folder_;
  PendingCheckpoint save_;
  bool is_open_ = false;
};

}  // namespace

std::unique_ptr<SaveTarget> make_storage_target(const WriteCheckpointOptions& options) {
  return std::make_unique<StorageTarget>(options);
}

}  // namespace muster::checkpoint
