#pragma once  // for other rooms

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace muster::format {

/// A file that is being written. If the object is destroyed without `publish`, the file does not appear.
/// Thread safety: one thread at a time.
class OutputFile {
 public:
  OutputFile() = default;
  virtual ~OutputFile() = default;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// The final path, for messages.
  virtual const std::filesystem::path& path() const = 0;
  /// Announces exactly this file size.
  virtual void reserve(std::uint64_t bytes) = 0;
  /// Appends the pieces in order.
  virtual void write(std::span<const std::string_view> pieces) = 0;
  /// Completes the file.
  virtual void publish() = 0;
};

}  // namespace muster::format
