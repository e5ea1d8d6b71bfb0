#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// A running save, whose files do not form a checkpoint yet.
struct PendingCheckpoint {
  std::string name;  ///< The name of the future checkpoint: "run/checkpoints/checkpoint_7".
  std::string id;    ///< The id of the save: different in each save, equal on all its ranks.
};

/// A file of a running save. If it is destroyed without close(), the file is no longer needed.
/// Thread safety: one thread at a time.
class StorageFile {
 public:
  virtual ~StorageFile() = default;
  /// Appends bytes; the caller may reuse their memory afterwards. Each call passes at most 4 MiB.
  virtual void write(std::string_view bytes) = 0;
  /// Completes the file: after this call every rank can read it once its save is committed.
  virtual void close() = 0;
};

/// Base class of a custom place for checkpoints, such as an object store. The counterpart of CheckpointIO in Lightning,
/// and of StorageWriter and StorageReader in torch.distributed.checkpoint. Derive from it, and pass an object for the
/// same place on all ranks as the option `project.storage`, or in WriteCheckpointOptions and ReadCheckpointOptions. See
/// docs/decisions/0087-checkpoints-in-a-storage-of-the-programs-own.md.
///
/// Every rank creates its own files. Rank 0 calls the rest: begin(), commit() or discard(), list() and remove().
/// A checkpoint exists from commit() on. Files of a save that was killed before commit() never become part of a
/// checkpoint.
/// The parts of a checkpoint's name are separated by "/" and are never "." or ".."; names of files contain no "/". A
/// function that fails throws any std::exception; all ranks then throw MU313 (saving) or MU314 (loading) with its
/// message. No function may wait without limit.
/// Thread safety: every function may be called from several threads at once.
class CheckpointStorage {
 public:
  virtual ~CheckpointStorage() = default;

  /// Called before any file of a save is created. Prepares the save, and removes the files of earlier saves of this
  /// name that were neither committed nor discarded because their program was killed. It may throw if it knows of
  /// another writer.
  virtual void begin(const PendingCheckpoint& /*save*/) {}
  /// Creates a file of a running save. It must not change a committed checkpoint of this name.
  virtual std::unique_ptr<StorageFile> create(const PendingCheckpoint& save, const std::string& file) = 0;
  /// Turns the files of this save into the checkpoint, in one step that replaces an earlier checkpoint of this name as
  /// a whole. When it returns, they are as durable as this storage can make them.
  virtual void commit(const PendingCheckpoint& save) = 0;
  /// Removes the files of a save that failed before commit() was called. Its errors are only logged.
  virtual void discard(const PendingCheckpoint& /*save*/) {}

  /// The last parts of the names of all committed checkpoints that lie directly in `folder`, in any order:
  /// "checkpoint_7" for "run/checkpoint_7" in "run". An unknown folder gives an empty list. "" contains the names that
  /// have one part.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  /// The size in bytes of a file of a committed checkpoint; nullopt if the checkpoint or the file does not exist.
  virtual std::optional<std::uint64_t> size(const std::string& checkpoint, const std::string& file) = 0;
  /// Fills `to` with the bytes of a file of a committed checkpoint from `offset` on. They lie within its size. Each
  /// call asks for at most 8 MiB.
  virtual void read(const std::string& checkpoint, const std::string& file, std::uint64_t offset,
                    std::span<char> to) = 0;
  /// Removes a committed checkpoint; list() omits it from the first change on. Called only for total_limit; its errors
  /// are only logged.
  virtual void remove(const std::string& checkpoint) = 0;
};

}  // namespace muster
