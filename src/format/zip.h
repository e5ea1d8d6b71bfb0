#pragma once  // for other rooms

#include "input_file.h"

/// Zip archives as Python's torch.save writes them: uncompressed records, each aligned to 64 bytes.
/// All functions are pure and may be called from any thread.
namespace muster::format {

/// The checksum of zip archives. `before` is the checksum of the bytes that precede `bytes`.
std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0);

/// One record of an archive.
struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0;  ///< position of its bytes in the file
  std::uint64_t bytes = 0;   ///< size in the file
  std::uint32_t crc = 0;
  bool stored = true;  ///< false if it is compressed and cannot be read here
};

/// Whether a file may be an archive, judged by its first four bytes.
bool is_zip(const InputFile& source);

/// The records of an archive that may be hostile, in the order of its directory. Names are unique; ranges are within
/// the file and do not overlap. Archives of one file, with and without 64-bit fields; no encryption.
/// Throws: CheckpointError MU225 with the reason.
std::vector<ZipEntry> read_zip(const InputFile& source);

/// The bytes of a record, checked against its checksum.
/// Throws: CheckpointError MU225 if it is longer than `limit`, compressed, or damaged.
std::string read_record(const InputFile& source, const ZipEntry& entry, std::uint64_t limit);

/// The bytes around the records of an archive that is written from front to back.
class ZipLayout {
 public:
  /// The bytes before a record's data, which begins at a multiple of 64.
  /// Requires: the previous record was written whole.
  std::string begin(std::string_view name, std::uint64_t bytes, std::uint32_t crc);
  /// The end of the archive.
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
