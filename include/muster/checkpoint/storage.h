#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// A save that is running: its files are those of no checkpoint yet.
struct PendingCheckpoint {
  std::string name;  ///< Of the checkpoint that it will be: "run/checkpoints/checkpoint_7".
  std::string id;    ///< Of this save: different in each save, the same on all its ranks.
};

/// A file of a running save. Destroyed without close(), the file is not wanted.
/// Thread safety: one thread at a time.
class StorageFile {
 public:
  virtual ~StorageFile() = default;
  /// Appends bytes, which are the caller's again afterwards. Pieces have up to 4 MiB.
  virtual void write(std::string_view bytes) = 0;
  /// The file is complete: after this call every rank can read it once its save is committed.
  virtual void close() = 0;
};

/// A place for checkpoints that the program provides, such as an object store: what CheckpointIO is in Lightning, and
/// StorageWriter and StorageReader in torch.distributed.checkpoint. Derive from it, and give all ranks an object for
/// the same place as the option `project.storage`, or in WriteCheckpointOptions and ReadCheckpointOptions.
///
/// Every rank creates its own files, and rank 0 does the rest: begin(), commit() or discard(), list() and remove().
/// A checkpoint exists from commit() on. What a rank that was killed has written is never part of one.
/// Names of checkpoints have their parts separated by "/", and neither "." nor ".." in them; names of files have no
/// "/". A function that cannot do its work throws any std::exception; saving becomes MU313 and loading MU314, with its
/// message, on all ranks. No function may wait without limit.
/// Thread safety: every function may be called from several threads at once.
class CheckpointStorage {
 public:
  virtual ~CheckpointStorage() = default;

  /// Called before any file of a save is created; for what is to be prepared, and for removing files of earlier saves
  /// of this name that were neither committed nor discarded, since their program was killed. It may throw if it knows
  /// of another writer.
  virtual void begin(const PendingCheckpoint& save);
  /// A new file of a running save. It must not change a committed checkpoint of this name.
  virtual std::unique_ptr<StorageFile> create(const PendingCheckpoint& save, const std::string& file) = 0;
  /// Makes the files of this save the checkpoint, in one step that replaces an earlier one of its name as a whole. When
  /// it returns, they are as durable as this storage can make them.
  virtual void commit(const PendingCheckpoint& save) = 0;
  /// Removes the files of a save that failed before commit() was called. Its errors are only logged.
  virtual void discard(const PendingCheckpoint& save);

  /// The last parts of the names of all committed checkpoints that lie directly in `folder`, in any order:
  /// "checkpoint_7" for "run/checkpoint_7" in "run". An unknown folder has none. "" contains names of one part.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  /// The size of a file of a committed checkpoint; nothing if there is no such checkpoint or no such file.
  virtual std::optional<std::uint64_t> size(const std::string& checkpoint, const std::string& file) = 0;
  /// Fills `to` with the bytes of a file of a committed checkpoint from `offset` on. They lie within its size. Pieces
  /// have up to 8 MiB.
  virtual void read(const std::string& checkpoint, const std::string& file, std::uint64_t offset,
                    std::span<char> to) = 0;
  /// Removes a committed checkpoint; list() no longer has it from the first change on. Only called for total_limit, and
  /// its errors are only logged.
  virtual void remove(const std::string& checkpoint) = 0;
};

}  // namespace muster
