#include "save_target.h"

#include "base/log.h"
#include "base/text.h"
#include "checkpoint_files.h"
#include "format/atomic_folder.h"
#include "format/input_file.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/storage.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kId = "MU313";  // of errors of saving
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

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw CheckpointError("MU202", folder.string() + " cannot be made (" + error.message() + "); nothing was saved");
}

/// Removes the lock, the partial checkpoint or the replaced one that a killed writer may have left of a number.
void clear_numbered(const fs::path& folder) {
  for (const fs::path& left : format::paths_in(folder)) {
    const std::string name = left.filename().string();
    const std::string checkpoint = name.starts_with('.') ? name.substr(1, name.find('.', 1) - 1) : "";
    if (number_in(checkpoint)) try {
        const format::FolderLock lock(folder / checkpoint);
        format::clear_left(folder / checkpoint);
      } catch (const CheckpointError&) {}  // another writer has that name
  }
}

using NumberedPaths = std::map<std::int64_t, fs::path>;

/// All entries of a folder whose names are those of numbered checkpoints, by number, of any file type.
NumberedPaths numbered_in(const fs::path& folder) {
  NumberedPaths found;
  for (const fs::path& path : format::paths_in(folder))
    if (const auto number = number_in(path.filename().string())) found.emplace(*number, path);
  return found;
}

/// As numbered_in(), for a storage. Throws: CheckpointError `id` (MU313 or MU314) if the storage fails.
NumberedPaths numbered_in_storage(std::string_view id, const std::string& folder, CheckpointStorage& storage) {
  NumberedPaths found;
  for (const std::string& name : call_storage(id, "list()", folder, [&] { return storage.list(folder); }))
    if (const auto number = number_in(name)) found.emplace(*number, fs::path(folder) / name);
  return found;
}

/// The path with the number after the highest of these. Throws: CheckpointError MU202 if no number is left.
fs::path next_numbered(const fs::path& folder, const NumberedPaths& numbered) {
  const std::string name =
      std::string(kNumberedName) + std::to_string(numbered.empty() ? 0 : numbered.rbegin()->first + 1);
  if (!number_in(name))
    throw CheckpointError("MU202", folder.string() + " has no number left above " +
                                       numbered.rbegin()->second.filename().string() + "; nothing was saved");
  return folder / name;
}

/// Why a checkpoint of a storage is neither removed nor counted; empty if it has a manifest of Muster.
/// Throws: CheckpointError MU314.
std::string reason_to_keep_in_storage(const fs::path& path, const std::shared_ptr<CheckpointStorage>& storage) {
  try {
    const auto manifest = open_checkpoint_files(path, storage)->open(std::string(format::kManifestName));
    format::parse_manifest(manifest->read_text(manifest->size()), manifest->path().string());
    return {};
  } catch (const CheckpointError& error) {
    if (error.id() == "MU314") throw;
    return "it has no manifest of a checkpoint (" + std::string(error.what()) + ")";
  }
}

/// Removes all but the `count` highest of these; 0 keeps all. A checkpoint for which `reason_to_keep` gives a reason is
/// neither removed nor counted, and the log says why. Throws: exceptions of the two functions.
void keep_highest(const NumberedPaths& numbered, int count,
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

/// A folder. Numbered checkpoints of a folder have one writer at a time.
class FolderTarget : public SaveTarget {
 public:
  explicit FolderTarget(const WriteCheckpointOptions& options) : options_(options) {}

  void open(const fs::path& path, const std::string&) override {
    fs::path target = path;
    if (options_.numbered) {
      make_folder(path);
      lock_.emplace(path / kLockedName);
      clear_numbered(path);
      target = next_numbered(path, numbered_in(path));
    }
    above_ = path;
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
    if (options_.numbered)
      keep_highest(numbered_in(above_), options_.total_limit, reason_to_keep_folder, format::remove_folder);
  }

 private:
  WriteCheckpointOptions options_;
  fs::path above_;  // the folder of numbered checkpoints
  std::optional<format::FolderLock> lock_;
  std::optional<format::AtomicFolder> folder_;
};

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
    save_ = {.name = options_.numbered ? next_numbered(folder_, numbered()).generic_string() : folder_, .id = id};
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
  NumberedPaths numbered() const { return numbered_in_storage(kId, folder_, storage_); }

  void remove_beyond_the_limit() const {
    const auto reason = [&](const fs::path& path) { return reason_to_keep_in_storage(path, options_.storage); };
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

}  // namespace

std::unique_ptr<SaveTarget> make_target(const WriteCheckpointOptions& options) {
  if (options.storage) return std::make_unique<StorageTarget>(options);
  return std::make_unique<FolderTarget>(options);
}

}  // namespace muster::checkpoint

namespace muster {

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
