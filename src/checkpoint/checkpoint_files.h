#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "format/input_file.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

/// The files of a checkpoint, open for reading. Thread safety: all functions from any thread.
class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;
  virtual const std::filesystem::path& path() const = 0;
  /// Throws: CheckpointError MU200 if there is no such file, MU314.
  virtual std::shared_ptr<format::InputFile> open(const std::string& name) const = 0;
};

/// The checkpoint in this folder, or under this name in the storage if one is set.
/// Throws: CheckpointError MU210 if there is none; MU317.
std::shared_ptr<const CheckpointFiles> open_checkpoint_files(const std::filesystem::path& path,
                                                             const std::shared_ptr<CheckpointStorage>& storage);

}  // namespace muster::checkpoint
