#pragma once  // for other rooms

#include <filesystem>
#include <functional>
#include <memory>

#include "base/descriptor.h"
#include "safetensors.h"

namespace muster::format {

/// Fills `to` with the bytes of a file at `offset`. Called by several threads at once.
using ReadBytes = std::function<void(std::uint64_t offset, char* to, std::size_t bytes)>;

/// A regular file open for random-access reading. Reading is thread-safe.
class InputFile {
 public:
  /// Throws: CheckpointError MU200 if there is no such file, it may not be read, or it is not a regular file.
  explicit InputFile(std::filesystem::path path);
  /// Opens the last component of `path` in an open folder; messages show `path`.
  InputFile(int folder, std::filesystem::path path);
  /// A file of this size that only `read` can read; messages show `path`.
  InputFile(std::filesystem::path path, std::uint64_t size, ReadBytes read);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  int descriptor() const { return descriptor_.get(); }
  /// Whether the file is in the kernel's file system, so that it can be mapped into memory.
  bool can_be_mapped() const { return bool{descriptor_}; }

  /// Fills `to` with the bytes at `offset`.
  /// Throws: CheckpointError MU200 if the medium fails or the file has become shorter.
  void read_at(std::uint64_t offset, void* to, std::size_t bytes) const;

  /// A range as text. Requires: it is within the size. Throws: as read_at().
  std::string text(std::uint64_t offset, std::uint64_t bytes) const;
  /// The whole file as text. Throws: CheckpointError MU200, also if it has more than `limit` bytes.
  std::string read_text(std::uint64_t limit) const;

 private:
  void take(int descriptor);

  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  Descriptor descriptor_;
  ReadBytes read_;
};

/// Reads and checks the header of a safetensors file.
/// Throws: CheckpointError MU200 or MU201.
Header read_header(const InputFile& file);

/// A private memory mapping of a file: no other process sees writes to this memory, and they never reach the file.
/// A file replaced by rename stays intact in this mapping; one truncated in place ends the process at the next access
/// (SIGBUS).
class MappedFile {
 public:
  enum class Access : std::uint8_t { read, copy_on_write };

  /// Requires: the file is not empty, and can be mapped.
  /// Throws: CheckpointError MU200.
  MappedFile(const InputFile& file, Access access);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  /// Whether this part of the file exists and is in the kernel's memory, as far as the kernel reports it: accessing it
  /// then needs no medium. Other parts should be read from the file instead of accessed here, so that a failure is an
  /// error and does not end the process. Thread-safe.
  /// Requires: `file` is the one that is mapped.
  bool is_resident(const InputFile& file, std::uint64_t offset, std::size_t bytes) const;

  /// Copies a part of the file to `to`. Returns false, and copies nothing, if it is not resident: then read the file.
  /// Thread-safe.
  /// Requires: `file` is the one that is mapped.
  bool copy_to(const InputFile& file, void* to, std::uint64_t offset, std::size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace muster::format
