#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "format/output_file.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

/// Where one checkpoint is written. Rank 0 opens and publishes it, every rank creates files in it. If the one of rank 0
/// is destroyed unpublished, nothing was saved.
/// Thread safety: one thread at a time.
class SaveTarget {
 public:
  virtual ~SaveTarget() = default;

  /// Begins the save with this id. `path`: of the checkpoint, or of the folder of numbered ones. Rank 0.
  /// Throws: CheckpointError MU202, MU211, MU212, MU313, MU317.
  virtual void open(const std::filesystem::path& path, const std::string& id) = 0;
  /// Of the checkpoint. Requires: open().
  virtual std::filesystem::path path() const = 0;
  /// Where files are written meanwhile, as all ranks need it for create(). Requires: open().
  virtual std::string part() const = 0;
  /// A new file of the save that rank 0 opened. Every rank.
  /// Throws: CheckpointError MU202, MU313, as its functions do.
  virtual std::unique_ptr<format::OutputFile> create(const std::string& part, const std::string& file) const = 0;
  /// Makes what was written the checkpoint, and then removes numbered ones beyond the limit. Rank 0.
  /// Throws: CheckpointError MU202, MU313.
  virtual void publish() = 0;
};

/// A storage if the options have one, else a folder.
std::unique_ptr<SaveTarget> make_target(const WriteCheckpointOptions& options);
std::unique_ptr<SaveTarget> make_storage_target(const WriteCheckpointOptions& options);

/// Creates a file of a rank by its name.
using CreateFile = std::function<std::unique_ptr<format::OutputFile>(const std::string& file)>;

}  // namespace muster::checkpoint
