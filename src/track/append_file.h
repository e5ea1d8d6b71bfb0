#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"

namespace muster::track {

/// Writes to a file at an offset, and returns how many bytes were written; errno says why not all.
std::size_t write_at(int descriptor, std::string_view bytes, uint64_t offset) noexcept;

/// A file that grows by whole records. After a disk error it ends with a whole record, and unwritten records wait for
/// the next flush; when a few megabytes are waiting, further records are dropped.
/// Thread safety: one thread at a time.
class AppendFile {
 public:
  /// Returns how many bytes of an existing file are whole records; the rest is cut off.
  using WholeBytes = std::function<uint64_t(const std::filesystem::path&)>;

  /// Opens the file, or creates it. Throws: ConfigError (MU421).
  explicit AppendFile(std::filesystem::path path, const WholeBytes& whole = {});

  const std::filesystem::path& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return written_ + waiting_.size(); }
  /// Size of the file in bytes, without records that wait for a flush.
  uint64_t written() const noexcept { return written_; }
  /// Appends a record in memory; flush() writes it.
  void add(std::string_view record);
  /// Writes the waiting records. Throws: Error (MU422) if some could not be written.
  void flush();
  /// Whole lines of the file from `begin` on: about `most` bytes, but at least one line; empty at the end of the file.
  std::string read_lines(uint64_t begin, std::size_t most) const;
  /// Removes all records from the file.
  void clear();

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  uint64_t written_ = 0;
  std::string waiting_;
  std::vector<std::size_t> ends_;  // ends of the records in waiting_
};

/// Replaces a file at once: the content is first written under another name, so that a reader never sees a part of it.
/// Throws: Error (MU422).
void replace_file(const std::filesystem::path& path, std::string_view content);
/// Whether a path, which should be relative, leads out of the folder that it is relative to.
bool leads_out(const std::filesystem::path& path);
/// The bytes of a file; empty if it cannot be read.
std::string file_text(const std::filesystem::path& path);
/// The number of bytes up to the last line end.
uint64_t whole_lines(const std::filesystem::path& path);
[[noreturn]] void refuse_write(const std::filesystem::path& path, const std::string& reason);

}  // namespace muster::track
