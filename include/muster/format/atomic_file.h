#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "muster/format/options.h"

namespace muster::format {

/// A file that appears under its name complete or not at all.
/// It is written aside, in the same folder, as `.NAME.XXXXXX.partial`. If the object ends without `publish`,
/// the part is removed and what stood under the name before is untouched. A process that is killed leaves its part
/// behind; the next AtomicFile of that name removes parts whose writer is gone.
/// What replaces a file has that file's mode, and its owner and group where this user may give them; a new one has the umask's.
/// One thread at a time.
class AtomicFile {
 public:
  /// Throws: CheckpointError MU202 if nothing can be written in that folder.
  AtomicFile(std::filesystem::path path, Durability durability);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Takes the room for a file of exactly this size on the disk, where the file system can: writing is faster then,
  /// and a full disk shows before anything is written.
  /// Throws: CheckpointError MU202.
  void reserve(std::uint64_t bytes);

  /// Appends the pieces in order, straight from where they are.
  /// Throws: CheckpointError MU202 (disk full, file too large, medium fails).
  void write(std::span<const std::string_view> pieces);

  /// Gives the bytes to the medium, as the durability asks. Nothing may be written afterwards.
  /// Throws: CheckpointError MU202.
  void finish();

  /// Finishes if need be, and puts the file under its name, in place of what was there.
  /// Throws: CheckpointError MU202.
  void publish();

  const std::filesystem::path& path() const { return path_; }

 private:
  void open_part();
  [[noreturn]] void fail(std::string_view what, int error) const;

  std::filesystem::path path_;
  std::filesystem::path part_;
  std::uint64_t written_ = 0;
  int descriptor_ = -1;
  Durability durability_;
  bool finished_ = false;
};

/// Waits until the names in a folder are on the medium.
/// Throws: CheckpointError MU202.
void sync_folder(const std::filesystem::path& folder);

}  // namespace muster::format
