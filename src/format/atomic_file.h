#pragma once  // for other rooms

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "checksum.h"
#include "muster/format/options.h"

namespace muster::format {

/// A file that is being written. If the object is destroyed without `publish`, the file does not appear.
/// Thread safety: one thread at a time.
class OutputFile {
 public:
  virtual ~OutputFile() = default;

  /// The final path, for messages.
  virtual const std::filesystem::path& path() const = 0;
  /// Announces exactly this file size.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Appends the pieces in order.
  virtual void write(std::span<const std::string_view> pieces) = 0;
  /// Completes the file.
  virtual void publish() = 0;
};

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
  Descriptor descriptor_;
  Durability durability_;
  bool finished_ = false;
};

/// The paths of what is in a folder; none if it cannot be read.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

/// Waits until the names in a folder are on the medium.
/// Throws: CheckpointError MU202.
void sync_folder(const std::filesystem::path& folder);

/// Default number of bytes per checksum.
inline constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

/// A file that appears complete or not at all. Its checksums are computed block by block in the pass that writes it,
/// while its bytes are in the processor's cache.
/// Thread safety: one thread at a time.
class BlockFile {
 public:
  /// Writes into `file`, to which nothing was written yet, and announces its size. Throws: exceptions of `file`, as do
  /// all functions.
  BlockFile(std::unique_ptr<OutputFile> file, std::uint64_t bytes);

  /// Appends a piece, at the latest at the next flush() or publish(); its memory must stay valid until then.
  /// Throws: CheckpointError MU202.
  void append(std::string_view bytes);
  void flush();

  /// Moves the file to its name. Returns the checksum of each block of kBlockBytes; the last block may be shorter.
  /// Throws: CheckpointError MU202.
  std::vector<std::uint64_t> publish();

 private:
  void add_to_checksums(std::string_view bytes);

  std::unique_ptr<OutputFile> file_;
  std::vector<std::string_view> waiting_;
  std::size_t waiting_bytes_ = 0;
  Checksum block_;
  std::uint64_t block_filled_ = 0;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace muster::format
