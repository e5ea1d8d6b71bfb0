#include "format/zip.h"

#include <unordered_set>

#include "base/crc.h"
#include "base/text.h"
#include "format/little_endian.h"
#include "muster/base/error.h"

namespace muster::format {

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) { return crc_of<kCrc32>(bytes, before); }

namespace {

constexpr std::uint64_t kAlignment = 64, kLimit32 = 0xFFFFFFFF;
constexpr std::uint16_t kVersion = 20, kVersion64 = 45, kFirstDay = 0x21;  // kFirstDay: 1 January 1980
constexpr std::string_view kPaddingId = "FB";

constexpr std::uint32_t kLocalSign = 0x04034b50, kCentralSign = 0x02014b50, kEndSign = 0x06054b50,
                        kEnd64Sign = 0x06064b50, kLocatorSign = 0x07064b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kCentralBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kMaxCommentBytes = 65535, kMaxDirectoryBytes = std::uint64_t{256} << 20;

std::uint32_t in_32_bits(std::uint64_t value) { return static_cast<std::uint32_t>(std::min(value, kLimit32)); }

/// The fields that local and central headers share, from the version on.
std::string shared_fields(bool large, std::uint32_t crc, std::uint64_t bytes, std::size_t name_bytes,
                          std::size_t extra_bytes) {
  std::string text;
  append_number<std::uint16_t>(text, large ? kVersion64 : kVersion);
  append_number<std::uint16_t>(text, 1 << 11);  // names are UTF-8
  append_number<std::uint16_t>(text, 0);        // stored
  append_number<std::uint16_t>(text, 0);
  append_number(text, kFirstDay);
  append_number(text, crc);
  append_number(text, in_32_bits(bytes));
  append_number(text, in_32_bits(bytes));
  append_number(text, static_cast<std::uint16_t>(name_bytes));
  append_number(text, static_cast<std::uint16_t>(extra_bytes));
  return text;
}

std::string large_fields(std::initializer_list<std::uint64_t> values) {
  std::string text;
  append_number<std::uint16_t>(text, 1);
  append_number(text, static_cast<std::uint16_t>(8 * values.size()));
  for (const std::uint64_t value : values) append_number(text, value);
  return text;
}

/// A meaningless extra field that makes `before + result` a multiple of the alignment.
std::string padding_after(std::uint64_t before) {
  const auto fill = static_cast<std::size_t>((kAlignment - (before + 4) % kAlignment) % kAlignment);
  std::string text(kPaddingId);
  append_number(text, static_cast<std::uint16_t>(fill));
  return text.append(fill, 'Z');
}

[[noreturn]] void refuse_zip(const InputFile& source, const std::string& reason) {
  throw CheckpointError("MU225", source.path().native() + ": " + reason + "; the archive is damaged or cut off");
}

/// The location of the central directory.
struct Directory {
  std::uint64_t entries = 0, offset = 0, bytes = 0;
};

/// The position of the end record: the last one whose comment reaches exactly to the end.
std::uint64_t find_end(const InputFile& source) {
  const std::uint64_t tail_bytes = std::min(source.size(), kEndBytes + kMaxCommentBytes);
  if (tail_bytes < kEndBytes) refuse_zip(source, "it is too short for an archive");
  const std::string tail = source.text(source.size() - tail_bytes, tail_bytes);
  for (std::size_t place = tail.size() - kEndBytes + 1; place-- > 0;)
    if (number_at<std::uint32_t>(tail, place) == kEndSign &&
        place + kEndBytes + number_at<std::uint16_t>(tail, place + 20) == tail.size())
      return source.size() - tail_bytes + place;
  refuse_zip(source, "its end has no directory");
}

Directory find_directory(const InputFile& source) {
  std::uint64_t end = find_end(source);
  const std::string record = source.text(end, kEndBytes);
  Directory found{.entries = number_at<std::uint16_t>(record, 10),
                  .offset = number_at<std::uint32_t>(record, 16),
                  .bytes = number_at<std::uint32_t>(record, 12)};
  const std::string locator = end >= kLocatorBytes ? source.text(end - kLocatorBytes, kLocatorBytes) : "";
  if (!locator.empty() && number_at<std::uint32_t>(locator, 0) == kLocatorSign) {
    const auto place = number_at<std::uint64_t>(locator, 8);
    if (end < kLocatorBytes + kEnd64Bytes || place > end - kLocatorBytes - kEnd64Bytes)
      refuse_zip(source, "its directory lies outside the file");
    const std::string large = source.text(place, kEnd64Bytes);
    if (number_at<std::uint32_t>(large, 0) != kEnd64Sign) refuse_zip(source, "its directory has no end record");
    found = {number_at<std::uint64_t>(large, 32), number_at<std::uint64_t>(large, 48),
             number_at<std::uint64_t>(large, 40)};
    end = place;
  }
  if (found.offset > end || found.bytes > end - found.offset) refuse_zip(source, "its directory lies outside the file");
  if (found.bytes > kMaxDirectoryBytes)
    refuse_zip(source, "its directory is larger than " + std::to_string(kMaxDirectoryBytes) + " bytes");
  if (found.entries > found.bytes / kCentralBytes) refuse_zip(source, "its directory is too short for its records");
  return found;
}

/// An entry of the directory; the offset is that of its local header.
struct CentralRecord {
  ZipEntry entry;
  std::uint64_t unpacked = 0;
};

/// Reads 64-bit fields from an extra field, which has them in a fixed order, and only those that are marked.
void read_large_fields(const InputFile& source, std::string_view extra, CentralRecord& record) {
  std::uint64_t* const wanted[] = {&record.unpacked, &record.entry.bytes, &record.entry.offset};
  for (std::size_t place = 0; place + 4 <= extra.size();) {
    const auto id = number_at<std::uint16_t>(extra, place), bytes = number_at<std::uint16_t>(extra, place + 2);
    const std::string_view field = extra.substr(place + 4, bytes);
    place += 4 + std::size_t{bytes};
    if (id != 1) continue;
    std::size_t next = 0;
    for (std::uint64_t* value : wanted) {
      if (*value != kLimit32) continue;
      if (next + 8 > field.size()) refuse_zip(source, "a record's 64-bit fields are cut off");
      *value = number_at<std::uint64_t>(field, next);
      next += 8;
    }
    return;
  }
}

CentralRecord read_central(const InputFile& source, std::string_view directory, std::size_t& place) {
  if (directory.size() - place < kCentralBytes || number_at<std::uint32_t>(directory, place) != kCentralSign)
    refuse_zip(source, "its directory has no record where one belongs");
  const std::size_t name_bytes = number_at<std::uint16_t>(directory, place + 28),
                    extra_bytes = number_at<std::uint16_t>(directory, place + 30),
                    comment_bytes = number_at<std::uint16_t>(directory, place + 32);
  if (directory.size() - place - kCentralBytes < name_bytes + extra_bytes + comment_bytes)
    refuse_zip(source, "its directory is cut off");
  if (number_at<std::uint16_t>(directory, place + 8) & 1) refuse_zip(source, "a record is encrypted");
  CentralRecord record;
  record.entry = {.name = std::string(directory.substr(place + kCentralBytes, name_bytes)),
                  .offset = number_at<std::uint32_t>(directory, place + 42),
                  .bytes = number_at<std::uint32_t>(directory, place + 20),
                  .crc = number_at<std::uint32_t>(directory, place + 16),
                  .stored = number_at<std::uint16_t>(directory, place + 10) == 0};
  record.unpacked = number_at<std::uint32_t>(directory, place + 24);
  read_large_fields(source, directory.substr(place + kCentralBytes + name_bytes, extra_bytes), record);
  if (record.entry.stored && record.unpacked != record.entry.bytes) refuse_zip(source, "a stored record has two sizes");
  place += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  return record;
}

/// Replaces the position of the local header by that of the bytes after it.
void find_bytes(const InputFile& source, ZipEntry& entry, std::uint64_t limit) {
  const std::uint64_t head = kLocalBytes + entry.name.size();
  if (entry.offset > limit || limit - entry.offset < head) refuse_zip(source, "a record lies outside the file");
  const std::string local = source.text(entry.offset, head);
  if (number_at<std::uint32_t>(local, 0) != kLocalSign || number_at<std::uint16_t>(local, 26) != entry.name.size() ||
      std::string_view(local).substr(kLocalBytes) != entry.name)
    refuse_zip(source, "a record and the directory disagree");
  const std::uint64_t begin = entry.offset + head + number_at<std::uint16_t>(local, 28);
  if (begin > limit || entry.bytes > limit - begin)
    refuse_zip(source, "a record reaches beyond the records' part of the file");
  entry.offset = begin;
}

void refuse_overlap(const InputFile& source, std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first < ranges[i - 1].second) refuse_zip(source, "two records share bytes");
}

}  // namespace

std::string ZipLayout::begin(std::string_view name, std::uint64_t bytes, std::uint32_t crc) {
  const bool large = bytes >= kLimit32;
  std::string extra = large ? large_fields({bytes, bytes}) : "";
  extra += padding_after(position_ + 30 + name.size() + extra.size());
  std::string text;
  append_number(text, kLocalSign);
  text += shared_fields(large, crc, bytes, name.size(), extra.size());
  text += name;
  text += extra;
  records_.push_back({std::string(name), bytes, position_, crc});
  position_ += text.size() + bytes;
  return text;
}

std::string ZipLayout::end() const {
  std::string text;
  for (const Record& record : records_) {
    const bool large_size = record.bytes >= kLimit32, large_place = record.header >= kLimit32;
    std::string extra;
    if (large_size && large_place) extra = large_fields({record.bytes, record.bytes, record.header});
    else if (large_size) extra = large_fields({record.bytes, record.bytes});
    else if (large_place) extra = large_fields({record.header});
    append_number(text, kCentralSign);
    append_number<std::uint16_t>(text, kVersion64);
    text += shared_fields(large_size || large_place, record.crc, record.bytes, record.name.size(), extra.size());
    append_number<std::uint16_t>(text, 0);  // comment
    append_number<std::uint16_t>(text, 0);  // disk
    append_number<std::uint16_t>(text, 0);  // attributes
    append_number<std::uint32_t>(text, 0);
    append_number(text, in_32_bits(record.header));
    text += record.name + extra;
  }
  const std::uint64_t bytes = text.size(), count = records_.size();
  append_number(text, kEnd64Sign);  // end record in 64-bit form, always written: readers prefer it
  append_number<std::uint64_t>(text, 44);
  append_number(text, kVersion64);
  append_number(text, kVersion64);
  append_number<std::uint64_t>(text, 0);
  for (const std::uint64_t value : {count, count, bytes, position_}) append_number(text, value);
  append_number(text, kLocatorSign);
  append_number<std::uint32_t>(text, 0);
  append_number(text, position_ + bytes);
  append_number<std::uint32_t>(text, 1);
  append_number(text, kEndSign);
  append_number<std::uint32_t>(text, 0);
  for (int i = 0; i < 2; ++i) append_number(text, static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xFFFF)));
  append_number(text, in_32_bits(bytes));
  append_number(text, in_32_bits(position_));
  append_number<std::uint16_t>(text, 0);
  return text;
}

bool is_zip(const InputFile& source) {
  return source.size() >= 4 && number_at<std::uint32_t>(source.text(0, 4), 0) == kLocalSign;
}

std::vector<ZipEntry> read_zip(const InputFile& source) {
  const Directory where = find_directory(source);
  const std::string directory = source.text(where.offset, where.bytes);
  std::vector<ZipEntry> entries;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::unordered_set<std::string> names;
  std::size_t place = 0;
  for (std::uint64_t i = 0; i < where.entries; ++i) {
    ZipEntry entry = read_central(source, directory, place).entry;
    const std::uint64_t header = entry.offset;
    find_bytes(source, entry, where.offset);
    ranges.emplace_back(header, entry.offset + entry.bytes);
    if (!names.insert(entry.name).second) refuse_zip(source, "two records have one name");
    entries.push_back(std::move(entry));
  }
  refuse_overlap(source, std::move(ranges));
  return entries;
}

std::string read_record(const InputFile& source, const ZipEntry& entry, std::uint64_t limit) {
  if (!entry.stored)
    refuse_zip(source, "the record " + in_quotes(entry.name) + " is compressed, which torch.save never does");
  if (entry.bytes > limit)
    refuse_zip(source, "the record " + in_quotes(entry.name) + " has more than " + std::to_string(limit) + " bytes");
  std::string bytes = source.text(entry.offset, entry.bytes);
  if (crc32(bytes) != entry.crc)
    refuse_zip(source, "the checksum of the record " + in_quotes(entry.name) + " is wrong");
  return bytes;
}

}  // namespace muster::format
