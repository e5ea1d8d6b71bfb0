#include "checkpoint/save_target.h"

#include <optional>

#include "checkpoint/numbered_folder.h"
#include "format/atomic_file.h"
#include "format/atomic_folder.h"
#include "format/manifest.h"

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

}  // namespace muster::checkpoint
