#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace muster::format {

class InputFile;

/// Bytes with random access: a file or memory.
struct ByteSource {
  std::string name;  ///< name for messages
  std::uint64_t size = 0;
  /// Fills `to` with `bytes` bytes at `offset`. Requires: the range is within the size.
  std::function<void(std::uint64_t offset, void* to, std::size_t bytes)> read;

  /// A range as text. Requires: it is within the size.
  std::string text(std::uint64_t offset, std::uint64_t bytes) const;
};

/// A source that keeps the file open. Reading throws CheckpointError MU200.
ByteSource source_of(std::shared_ptr<const InputFile> file);
/// A source in memory. Requires: the bytes outlive the source.
ByteSource source_of(std::string_view bytes, std::string name);

}  // namespace muster::format
