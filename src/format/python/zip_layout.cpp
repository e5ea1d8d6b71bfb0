#include <algorithm>

#include "format/little_endian.h"
#include "format/zip.h"

namespace muster::format {
namespace {

constexpr std::uint64_t kAlignment = 64, kLimit32 = 0xFFFFFFFF;
constexpr std::uint16_t kVersion = 20, kVersion64 = 45, kFirstDay = 0x21;  // kFirstDay: 1 January 1980
constexpr std::string_view kPaddingId = "FB";

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

}  // namespace

std::string ZipLayout::begin(std::string_view name, std::uint64_t bytes, std::uint32_t crc) {
  const bool large = bytes >= kLimit32;
  std::string extra = large ? large_fields({bytes, bytes}) : "";
  extra += padding_after(position_ + 30 + name.size() + extra.size());
  std::string text;
  append_number<std::uint32_t>(text, 0x04034b50);
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
    append_number<std::uint32_t>(text, 0x02014b50);
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
  append_number<std::uint32_t>(text, 0x06064b50);  // end record in 64-bit form, always written: readers prefer it
  append_number<std::uint64_t>(text, 44);
  append_number(text, kVersion64);
  append_number(text, kVersion64);
  append_number<std::uint64_t>(text, 0);
  for (const std::uint64_t value : {count, count, bytes, position_}) append_number(text, value);
  append_number<std::uint32_t>(text, 0x07064b50);
  append_number<std::uint32_t>(text, 0);
  append_number(text, position_ + bytes);
  append_number<std::uint32_t>(text, 1);
  append_number<std::uint32_t>(text, 0x06054b50);
  append_number<std::uint32_t>(text, 0);
  for (int i = 0; i < 2; ++i) append_number(text, static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xFFFF)));
  append_number(text, in_32_bits(bytes));
  append_number(text, in_32_bits(position_));
  append_number<std::uint16_t>(text, 0);
  return text;
}

}  // namespace muster::format
