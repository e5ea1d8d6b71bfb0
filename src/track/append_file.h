#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::track {

/// A file that grows by whole records. After an error of the disk it ends with a whole record, and what was not written
/// waits for the next flush; records beyond a few megabytes that wait are dropped.
/// Thread safety: one thread at a time.
class AppendFile {
 public:
  /// Given the end of an existing file, returns how many of its bytes are whole records; the others are cut off.
  using WholeBytes = std::function<uint64_t(const std::filesystem::path&)>;

  /// Opens the file, or creates it. Throws: ConfigError (MU421).
  explicit AppendFile(std::filesystem::path path, const WholeBytes& whole = {});
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  const std::filesystem::path& path() const noexcept { return path_; }
  uint64_t size() const noexcept { return written_ + waiting_.size(); }
  /// Bytes that are in the file, without what waits for a flush.
  uint64_t written() const noexcept { return written_; }
  /// Appends a record in memory; flush() writes it.
  void add(std::string_view record);
  /// Throws: Error (MU422) if not all was written.
  void flush();
  /// Whole lines of the file from `begin` on, about `most` bytes but at least one line; empty at its end.
  std::string read_lines(uint64_t begin, std::size_t most) const;
  /// Takes all records out of the file.
  void clear();

 private:
  std::filesystem::path path_;
  int descriptor_;
  uint64_t written_ = 0;
  std::string waiting_;
  std::vector<std::size_t> ends_;  // of the records in waiting_
};

/// Writes a whole file under another name first, so that a reader never sees half of it. Throws: Error (MU422).
void replace_file(const std::filesystem::path& path, std::string_view content);
/// Bytes up to the last line end.
uint64_t whole_lines(const std::filesystem::path& path);
[[noreturn]] void refuse_write(const std::filesystem::path& path, const std::string& reason);

}  // namespace muster::track
