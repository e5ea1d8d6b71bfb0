#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/format/byte_source.h"

/// Zip archives as Python's torch.save writes them: records stored as they are, each at a multiple of 64 bytes.
/// All functions are pure and may be called from any thread.
namespace muster::format {

/// The checksum of zip archives, of `bytes` behind what gave `before`.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// One record of an archive.
struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0;  ///< Of its bytes in the file.
  std::uint64_t bytes = 0;   ///< As they lie in the file.
  std::uint32_t crc = 0;
  bool stored = true;        ///< False if it is compressed, and so cannot be read here.
};

/// Whether a file may be an archive: by its first four bytes.
bool is_zip(const ByteSource& source);

/// The records of an archive that may be hostile, in the order of its directory. Names differ, ranges lie in the file and
/// do not overlap. Archives of one file, with and without 64-bit fields; no encryption.
/// Throws: CheckpointError MU225 with the reason.
std::vector<ZipEntry> read_zip(const ByteSource& source);

/// The bytes of a record, checked against its checksum.
/// Throws: CheckpointError MU225 if it is longer than `limit`, compressed, or damaged.
std::string read_record(const ByteSource& source, const ZipEntry& entry, std::uint64_t limit);

/// What surrounds the records of an archive that is written from front to back.
class ZipLayout {
 public:
  /// What stands before a record's bytes, which begin at a multiple of 64.
  /// Requires: the record before was written whole.
  std::string begin(std::string_view name, std::uint64_t bytes, std::uint32_t crc);
  /// What ends the archive.
  std::string end() const;

 private:
  struct Record {
    std::string name;
    std::uint64_t bytes, header;
    std::uint32_t crc;
  };
  std::uint64_t position_ = 0;
  std::vector<Record> records_;
};

}  // namespace muster::format
