#pragma once  // for other rooms

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "format/checksum.h"
#include "format/output_file.h"

namespace muster::format {

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
