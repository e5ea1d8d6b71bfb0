#pragma once

#include <functional>

#include "format/atomic_file.h"
#include "format/atomic_folder.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

/// All entries of a folder whose names are those of numbered checkpoints, by number, of any file type.
std::map<std::int64_t, std::filesystem::path> numbered_in(const std::filesystem::path& folder);
/// As numbered_in(), for a storage. Throws: CheckpointError `id` (MU313 or MU314) if the storage fails.
std::map<std::int64_t, std::filesystem::path> numbered_in_storage(std::string_view id, const std::string& folder,
                                                                  CheckpointStorage& storage);

/// The path with the number after the highest of these. Throws: CheckpointError MU202 if no number is left.
std::filesystem::path next_numbered(const std::filesystem::path& folder,
                                    const std::map<std::int64_t, std::filesystem::path>& numbered);

/// Why a checkpoint of a storage is neither removed nor counted; empty if it has a manifest of Muster.
/// Throws: CheckpointError MU314.
std::string reason_to_keep(const std::filesystem::path& path, const std::shared_ptr<CheckpointStorage>& storage);

/// Removes all but the `count` highest of these; 0 keeps all. A checkpoint for which `reason_to_keep` gives a reason is
/// neither removed nor counted, and the log says why. Throws: exceptions of the two functions.
void keep_highest(const std::map<std::int64_t, std::filesystem::path>& numbered, int count,
                  const std::function<std::string(const std::filesystem::path& path)>& reason_to_keep,
                  const std::function<void(const std::filesystem::path& path)>& remove);

/// A folder of numbered checkpoints, with one writer at a time.
class NumberedFolder {
 public:
  /// Throws: CheckpointError MU202, MU211.
  explicit NumberedFolder(const std::filesystem::path& folder);

  /// The path of the next checkpoint: after the highest number.
  std::filesystem::path next() const;
  /// Removes the lowest checkpoints written by Muster until `count` are left; 0 keeps all. An entry with such a name
  /// that is a link, a file, or a folder without a Muster manifest or with foreign files is neither removed nor
  /// counted.
  void keep_highest(int count) const;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<format::FolderLock> lock_;
};

/// The destination of one checkpoint. Rank 0 opens and publishes it, every rank creates files in it. If rank 0's target
/// is destroyed unpublished, nothing was saved.
/// Thread safety: one thread at a time.
class SaveTarget {
 public:
  virtual ~SaveTarget() = default;

  /// Begins the save with this id. `path`: the checkpoint, or the folder of numbered checkpoints. Called on rank 0.
  /// Throws: CheckpointError MU202, MU211, MU212, MU313, MU317.
  virtual void open(const std::filesystem::path& path, const std::string& id) = 0;
  /// The path of the checkpoint. Requires: open().
  virtual std::filesystem::path path() const = 0;
  /// The place where files are written before publication; all ranks need it for create(). Requires: open().
  virtual std::string part() const = 0;
  /// Creates a file of the save that rank 0 opened. Called on every rank.
  /// Throws: CheckpointError MU202, MU313, as the functions of the file do.
  virtual std::unique_ptr<format::OutputFile> create(const std::string& part, const std::string& file) const = 0;
  /// Makes the written files the checkpoint, and then removes numbered checkpoints beyond the limit. Called on rank 0.
  /// Throws: CheckpointError MU202, MU313.
  virtual void publish() = 0;
};

/// A target in the storage if the options have one, otherwise in a folder.
std::unique_ptr<SaveTarget> make_target(const WriteCheckpointOptions& options);
std::unique_ptr<SaveTarget> make_storage_target(const WriteCheckpointOptions& options);

/// Creates a file of a rank by name.
using CreateFile = std::function<std::unique_ptr<format::OutputFile>(const std::string& file)>;

}  // namespace muster::checkpoint
