#pragma once  // for other rooms

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "format/output_file.h"
#include "muster/format/options.h"

namespace muster::format {

/// A file that appears under its name complete or not at all.
/// It is first written to `.NAME.XXXXXX.partial` in the same folder. If the object is destroyed without `publish`, the
/// partial file is removed and an existing file of that name is untouched. A killed process leaves its partial file
/// behind; the next AtomicFile of that name removes partial files whose writer no longer runs.
/// A replacement keeps the mode of the file that it replaces, and its owner and group where this user may set them; the
/// mode of a new file follows the umask.
/// Thread safety: one thread at a time.
class AtomicFile final : public OutputFile {
 public:
  /// Throws: CheckpointError MU202 if nothing can be written in that folder.
  AtomicFile(std::filesystem::path path, Durability durability);
  ~AtomicFile() override;

  /// Reserves exactly this file size on the disk if the file system supports it: writing is then faster, and a full
  /// disk is detected before anything is written.
  /// Throws: CheckpointError MU202.
  void reserve(std::uint64_t bytes) override;

  /// Appends the pieces in order, without copying them.
  /// Throws: CheckpointError MU202 (disk full, file too large, medium error).
  void write(std::span<const std::string_view> pieces) override;

  /// Flushes the bytes to the medium, as `durability` requires. Nothing may be written afterwards.
  /// Throws: CheckpointError MU202.
  void finish();

  /// Finishes if needed, and moves the file to its name, replacing an existing file.
  /// Throws: CheckpointError MU202.
  void publish() override;

  const std::filesystem::path& path() const override { return path_; }

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
