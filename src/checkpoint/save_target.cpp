#include "save_target.h"

#include <set>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint_files.h"
#include "format/input_file.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/storage.h"

namespace muster {
namespace checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kNumberedName = "checkpoint_";
constexpr std::string_view kLockedName = "checkpoints";

/// Limit on digits: enough for any number of checkpoints, and within int64_t.
constexpr std::size_t kMostDigits = 18;

std::optional<std::int64_t> number_in(std::string_view name) {
  if (!name.starts_with(kNumberedName)) return std::nullopt;
  const std::string_view digits = name.substr(kNumberedName.size());
  if (digits.empty() || digits.size() > kMostDigits || (digits[0] == '0' && digits.size() > 1)) return std::nullopt;
  const auto number = parse_number<std::int64_t>(digits);
  return number >= 0 ? number : std::nullopt;
}

/// Why this folder must not be removed; empty for a checkpoint of Muster without foreign files.
std::string reason_to_keep_folder(const fs::path& path) {
  try {
    if (fs::symlink_status(path).type() != fs::file_type::directory) return "it is not a folder";
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      const bool ours =
          format::is_checkpoint_file_name(name) && entry.symlink_status().type() == fs::file_type::regular;
      if (!ours) return "it holds " + in_quotes(name) + ", which is none of ours";
    }
    const format::InputFile manifest(path / format::kManifestName);
    format::parse_manifest(manifest.read_text(manifest.size()), manifest.path().string());
    return {};
  } catch (const CheckpointError& error) {
    return "it has no manifest of a checkpoint (" + std::string(error.what()) + ")";
  } catch (const fs::filesystem_error& error) {
    return "it cannot be looked into (" + error.code().message() + ")";
  }
}

/// Why this checkpoint must not be loaded; empty if it is complete. Checks everything except the values.
std::string reason_to_pass_over(const fs::path& path, const std::shared_ptr<CheckpointStorage>& storage) {
  try {
    const Checkpoint checkpoint(path, {.check = CheckpointCheck::as_read, .storage = storage});
    return {};
  } catch (const CheckpointError& error) {
    // A checkpoint of a newer version, or unreachable for now: loading an older one would silently lose training
    // progress.
    if (error.id() == "MU216" || error.id() == "MU314") throw;
    return error.what();
  } catch (const fs::filesystem_error& error) {
    return error.what();
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw CheckpointError("MU202", folder.string() + " cannot be made (" + error.message() + "); nothing was saved");
}

/// The numbers for which a killed writer may have left a lock, a partial checkpoint or a replaced one.
std::set<std::int64_t> left_in(const fs::path& folder) {
  std::set<std::int64_t> numbers;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) continue;
    if (const auto number = number_in(std::string_view(name).substr(1, name.find('.', 1) - 1))) numbers.insert(*number);
  }
  return numbers;
}

void clear_numbered(const fs::path& folder) {
  for (const std::int64_t number : left_in(folder)) try {
      const fs::path path = folder / (std::string(kNumberedName) + std::to_string(number));
      const format::FolderLock lock(path);
      format::clear_left(path);
    } catch (const CheckpointError&) {}  // another writer has that name
}

}  // namespace

std::map<std::int64_t, fs::path> numbered_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored))
    if (const auto number = number_in(entry->path().filename().string())) found.emplace(*number, entry->path());
  return found;
}

std::map<std::int64_t, fs::path> numbered_in_storage(std::string_view id, const std::string& folder,
                                                     CheckpointStorage& storage) {
  std::map<std::int64_t, fs::path> found;
  for (const std::string& name : call_storage(id, "list()", folder, [&] { return storage.list(folder); }))
    if (const auto number = number_in(name)) found.emplace(*number, fs::path(folder) / name);
  return found;
}

fs::path next_numbered(const fs::path& folder, const std::map<std::int64_t, fs::path>& numbered) {
  const std::string name =
      std::string(kNumberedName) + std::to_string(numbered.empty() ? 0 : numbered.rbegin()->first + 1);
  if (!number_in(name))
    throw CheckpointError("MU202", folder.string() + " has no number left above " +
                                       numbered.rbegin()->second.filename().string() + "; nothing was saved");
  return folder / name;
}

std::string reason_to_keep(const fs::path& path, const std::shared_ptr<CheckpointStorage>& storage) {
  try {
    const auto manifest = open_checkpoint_files(path, storage)->open(std::string(format::kManifestName));
    format::parse_manifest(manifest->read_text(manifest->size()), manifest->path().string());
    return {};
  } catch (const CheckpointError& error) {
    if (error.id() == "MU314") throw;
    return "it has no manifest of a checkpoint (" + std::string(error.what()) + ")";
  }
}

void keep_highest(const std::map<std::int64_t, fs::path>& numbered, int count,
                  const std::function<std::string(const fs::path& path)>& reason_to_keep,
                  const std::function<void(const fs::path& path)>& remove) {
  if (count <= 0 || numbered.size() <= static_cast<std::size_t>(count)) return;
  for (auto entry = numbered.rbegin(); entry != numbered.rend(); ++entry) {
    const fs::path& path = entry->second;
    const std::string reason = reason_to_keep(path);
    if (reason.empty() && count-- <= 0) remove(path);
    if (!reason.empty()) log::info(path.string(), " is left as it is, and not counted by total_limit: ", reason);
  }
}

NumberedFolder::NumberedFolder(const fs::path& folder) : folder_(folder) {
  make_folder(folder);
  lock_ = std::make_unique<format::FolderLock>(folder / kLockedName);
  clear_numbered(folder);
}

fs::path NumberedFolder::next() const { return next_numbered(folder_, numbered_in(folder_)); }

void NumberedFolder::keep_highest(int count) const {
  checkpoint::keep_highest(
      numbered_in(folder_), count, [](const fs::path& path) { return reason_to_keep_folder(path); },
      format::remove_folder);
}

}  // namespace checkpoint

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder,
                                                       const std::shared_ptr<CheckpointStorage>& storage) {
  const auto there = storage ? checkpoint::numbered_in_storage("MU314", checkpoint::storage_name(folder), *storage)
                             : checkpoint::numbered_in(folder);
  for (auto entry = there.rbegin(); entry != there.rend(); ++entry) {
    const std::string reason = checkpoint::reason_to_pass_over(entry->second, storage);
    if (reason.empty()) return entry->second;
    log::warning(entry->second.string(), " is passed over, since it is not a whole checkpoint: ", reason);
  }
  return std::nullopt;
}

}  // namespace muster

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;

class FolderTarget : public SaveTarget {
 public:
  explicit FolderTarget(const WriteCheckpointOptions& options) : options_(options) {}

  void open(const fs::path& path, const std::string&) override {
    const fs::path target = options_.numbered ? numbered_.emplace(path).next() : path;
    folder_.emplace(target, options_.durability, format::is_checkpoint_file_name);
  }

  fs::path path() const override { return folder_->path(); }
  std::string part() const override { return folder_->part().string(); }

  std::unique_ptr<format::OutputFile> create(const std::string& part, const std::string& file) const override {
    const bool durable = options_.durability != Durability::none;
    return std::make_unique<format::AtomicFile>(fs::path(part) / file, durable ? Durability::file : Durability::none);
  }

  void publish() override {
    folder_->publish();
    if (numbered_) numbered_->keep_highest(options_.total_limit);
  }

 private:
  WriteCheckpointOptions options_;
  std::optional<NumberedFolder> numbered_;
  std::optional<format::AtomicFolder> folder_;
};

}  // namespace

std::unique_ptr<SaveTarget> make_target(const WriteCheckpointOptions& options) {
  if (options.storage) return make_storage_target(options);
  return std::make_unique<FolderTarget>(options);
}

namespace {

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
