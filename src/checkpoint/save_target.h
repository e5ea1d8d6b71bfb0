#pragma once

#include <functional>

#include "format/atomic_file.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

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

/// Creates a file of a rank by name.
using CreateFile = std::function<std::unique_ptr<format::OutputFile>(const std::string& file)>;

}  // namespace muster::checkpoint
