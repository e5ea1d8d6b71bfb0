#pragma once

#include <exception>

#include "format/input_file.h"
#include "muster/checkpoint/options.h"

namespace muster::checkpoint {

/// The name in a storage of a checkpoint or of a folder of checkpoints: "a/b" for "./a/b/"; "" for ".".
/// Throws: CheckpointError MU317 for a path above the storage.
std::string storage_name(const std::filesystem::path& path);

/// Throws: CheckpointError MU313 for a function of saving, MU314 for one of loading. The message has the function, the
/// checkpoint or file, and the exception that is being handled.
[[noreturn]] void refuse_storage(std::string_view id, std::string_view function, const std::string& place,
                                 const char* what);

/// Calls a function of a custom storage. Throws: as refuse_storage(), for any exception.
template <class Call>
auto call_storage(std::string_view id, std::string_view function, const std::string& place, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    refuse_storage(id, function, place, error.what());
  } catch (...) {
    refuse_storage(id, function, place, "something that is not derived from std::exception");
  }
}

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
