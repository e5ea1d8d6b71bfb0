#include "checkpoint_files.h"

#include <fcntl.h>

#include <cerrno>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/text.h"
#include "format/atomic_folder.h"
#include "format/manifest.h"
#include "muster/base/error.h"
#include "muster/checkpoint/storage.h"

namespace muster::checkpoint {

std::string storage_name(const std::filesystem::path& path) {
  std::filesystem::path normal = path.lexically_normal();
  if (!normal.empty() && !normal.has_filename()) normal = normal.parent_path();
  if (normal == ".") normal.clear();
  if (!normal.empty() && *normal.begin() == "..")
    throw CheckpointError("MU317", in_quotes(path.string()) +
                                       " leads above the program's storage of checkpoints; give a "
                                       "name without \"..\", or another project.directory");
  return normal.generic_string();
}

void refuse_storage(std::string_view id, std::string_view function, const std::string& place, const char* what) {
  const std::string failed = "the program's storage of checkpoints failed in " + std::string(function) + " of " +
                             in_quotes(place) + ": " + what;
  if (id == "MU313")
    throw CheckpointError("MU313", failed + "; the checkpoint was not saved. See to the storage, and save again");
  throw CheckpointError("MU314", failed + "; nothing was loaded. See to the storage, and load again");
}

namespace {

namespace fs = std::filesystem;

/// Keeps the folder open, so that it stays the same one even if its name later refers to another.
class FolderFiles : public CheckpointFiles {
 public:
  explicit FolderFiles(const fs::path& path)
      : path_(path), folder_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder_)
      throw CheckpointError(
          "MU200", path.string() + ": cannot be opened as a folder (" + std::generic_category().message(errno) + ")");
  }
  const fs::path& path() const override { return path_; }
  std::shared_ptr<format::InputFile> open(const std::string& name) const override {
    return std::make_shared<format::InputFile>(folder_.get(), path_ / name);
  }

 private:
  fs::path path_;
  Descriptor folder_;
};

/// Queries the size of each file once.
class FilesInStorage : public CheckpointFiles {
 public:
  FilesInStorage(fs::path path, std::shared_ptr<CheckpointStorage> storage)
      : path_(std::move(path)), storage_(std::move(storage)) {}

  const fs::path& path() const override { return path_; }

  std::shared_ptr<format::InputFile> open(const std::string& name) const override {
    const base::Lock lock(mutex_);
    auto& file = files_[name];
    if (file) return file;
    const std::string checkpoint = path_.generic_string();
    const auto size =
        call_storage("MU314", "size()", checkpoint + "/" + name, [&] { return storage_->size(checkpoint, name); });
    if (!size) throw CheckpointError("MU200", (path_ / name).string() + ": there is no such file in the storage");
    const auto read = [storage = storage_, checkpoint, name](std::uint64_t offset, char* to, std::size_t bytes) {
      call_storage("MU314", "read()", checkpoint + "/" + name, [&] {
        storage->read(checkpoint, name, offset, {to, bytes});
      });
    };
    return file = std::make_shared<format::InputFile>(path_ / name, *size, read);
  }

 private:
  fs::path path_;
  std::shared_ptr<CheckpointStorage> storage_;
  mutable std::map<std::string, std::shared_ptr<format::InputFile>> files_ MUSTER_GUARDED_BY(mutex_);
  mutable base::Mutex mutex_;
};

[[noreturn]] void refuse_missing(const fs::path& path, const char* what) {
  throw CheckpointError("MU210", "there is no checkpoint at " + path.string() + what + "; check the path");
}

}  // namespace

std::shared_ptr<const CheckpointFiles> open_checkpoint_files(const fs::path& path,
                                                             const std::shared_ptr<CheckpointStorage>& storage) {
  if (storage) {
    auto files = std::make_shared<FilesInStorage>(storage_name(path), storage);
    try {
      files->open(std::string(format::kManifestName));
    } catch (const CheckpointError& error) {
      if (error.id() != "MU200") throw;
      refuse_missing(files->path(), " in the program's storage");
    }
    return files;
  }
  std::error_code ignored;
  const fs::path folder = format::find_folder(path);
  if (!fs::exists(folder, ignored)) refuse_missing(path, "");
  return std::make_shared<FolderFiles>(folder);
}

}  // namespace muster::checkpoint
