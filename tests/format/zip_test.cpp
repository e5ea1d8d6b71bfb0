#include "format/zip.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "checks.h"
#include "muster/base/error.h"
#include "python_values.h"

namespace muster::format {
namespace {

using checks::expect_error;

struct Written {
  std::string bytes;
  std::vector<std::string> names;
};

Written archive(const std::vector<std::pair<std::string, std::string>>& records) {
  Written written;
  ZipLayout layout;
  for (const auto& [name, bytes] : records) {
    written.bytes += layout.begin(name, bytes.size(), crc32(bytes)) + bytes;
    written.names.push_back(name);
  }
  written.bytes += layout.end();
  return written;
}

const std::string kSmall = archive({{"a/data.pkl", "N."}, {"a/data/0", std::string(100, 'x')}, {"a/empty", ""}}).bytes;

void refuses_zip(std::string_view words, const std::string& bytes) {
  expect_error<CheckpointError>("MU225", words, [&] { read_zip(checks::in_memory(bytes, "file")); });
}

TEST(Crc32Test, IsThatOfZip) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(""), 0u);
  const std::string text(1000, 'q');
  EXPECT_EQ(crc32(std::string_view(text).substr(13), crc32(std::string_view(text).substr(0, 13))), crc32(text));
}

TEST(ZipTest, RecordsComeBackAligned) {
  const auto entries = read_zip(checks::in_memory(kSmall, "file"));
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[1].name, "a/data/0");
  for (const auto& entry : entries) EXPECT_EQ(entry.offset % 64, 0u) << entry.name;
  EXPECT_EQ(read_record(checks::in_memory(kSmall, "file"), entries[1], 100), std::string(100, 'x'));
}

TEST(ZipTest, LargeRecordsHaveWideFields) {
  // Only the headers around the records are built; the bytes of the records read as zeros.
  ZipLayout layout;
  const std::uint64_t large = std::uint64_t{5} << 30;
  const std::string first = layout.begin("a/1", large, 7), second = layout.begin("a/2", 3, 8), end = layout.end();
  const std::uint64_t second_place = first.size() + large, end_place = second_place + second.size() + 3;
  const InputFile source("file", end_place + end.size(), [&](std::uint64_t offset, char* place, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::uint64_t at = offset + i;
      place[i] = at < first.size()                                         ? first[at]
                 : at >= end_place                                         ? end[at - end_place]
                 : at >= second_place && at < second_place + second.size() ? second[at - second_place]
                                                                           : '\0';
    }
  });
  const auto entries = read_zip(source);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].bytes, large);
  EXPECT_EQ(entries[1].offset, second_place + second.size());
  EXPECT_EQ(entries[1].offset % 64, 0u);
}

TEST(ZipTest, RefusesWhatIsNoArchive) {
  refuses_zip("too short", "PK");
  refuses_zip("no directory", std::string(1000, 'x'));
  EXPECT_FALSE(is_zip(checks::in_memory("PK", "file")));
  EXPECT_TRUE(is_zip(checks::in_memory(kSmall, "file")));
}

TEST(ZipTest, RefusesADamagedRecord) {
  std::string bytes = kSmall;
  bytes[bytes.find("xxx") + 5] = 'y';
  const auto entries = read_zip(checks::in_memory(bytes, "file"));
  expect_error<CheckpointError>("MU225", "checksum",
                                [&] { read_record(checks::in_memory(bytes, "file"), entries[1], 1000); });
  expect_error<CheckpointError>("MU225", "more than 99",
                                [&] { read_record(checks::in_memory(bytes, "file"), entries[1], 99); });
}

TEST(ZipTest, RefusesADisagreeingHeader) {
  std::string bytes = kSmall;
  bytes[bytes.find("a/data/0")] = 'b';
  refuses_zip("disagree", bytes);
}

TEST(ZipTest, RefusesTwoRecordsOfOneName) { refuses_zip("one name", archive({{"a", "1"}, {"a", "2"}}).bytes); }

TEST(ZipTest, RefusesRecordsThatShareBytes) {
  std::string bytes = archive({{"a", "11"}, {"b", "22"}}).bytes;
  // Both entries of the directory point at the first header; the names are made equal in length, so only the overlap is
  // left.
  const auto directory = bytes.find("PK\x01\x02");
  const auto second = bytes.find("PK\x01\x02", directory + 4);
  std::string same = bytes;
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(directory) + 42, 4,
              same.begin() + static_cast<std::ptrdiff_t>(second) + 42);
  refuses_zip("disagree", same);
  std::string longer = bytes;
  for (const std::size_t field : {20u, 24u}) longer[directory + field] = 50;
  refuses_zip("share bytes", longer);
}

TEST(ZipTest, RefusesACompressedRecord) {
  std::string bytes = kSmall;
  bytes[bytes.find("PK\x01\x02") + 10] = 8;
  const auto entries = read_zip(checks::in_memory(bytes, "file"));
  expect_error<CheckpointError>("MU225", "compressed",
                                [&] { read_record(checks::in_memory(bytes, "file"), entries[0], 100); });
}

TEST(ZipTest, EveryCutAndEveryFlippedByteIsReadOrRefused) {
  // MU200 would say that the reader asked for bytes that are not there, in place of checking first.
  for (std::size_t size = 0; size < kSmall.size(); ++size)
    expect_error<CheckpointError>(
        "MU225", "file", [size] { read_zip(checks::in_memory(std::string_view(kSmall).substr(0, size), "file")); });
  std::mt19937 random(1);
  for (std::size_t place = 0; place < kSmall.size(); ++place) {
    std::string bytes = kSmall;
    bytes[place] = static_cast<char>(random());
    try {
      for (const auto& entry : read_zip(checks::in_memory(bytes, "file")))
        EXPECT_LE(entry.offset + entry.bytes, bytes.size());
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.id(), "MU225");
    }
  }
}

}  // namespace
}  // namespace muster::format
