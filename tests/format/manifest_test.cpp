#include "format/manifest.h"

#include <random>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/checksum.h"

namespace muster::format {
namespace {

using checks::expect_error;

Manifest some_manifest() { return {.id = "0123456789abcdef", .indexes = {{12, 0xab}, {345, 0xffffffffffffffff}}}; }

RankIndex some_index() {
  return {.id = "id",
          .rank = 3,
          .file_bytes = 9000,
          .block_bytes = 4096,
          .checksums = {1, 2, 0xfedcba9876543210},
          .shards = {{"w", {2, 3}, 4, "slice/w@4"}, {"\xc3\xa4", {}, 0, "s"}},
          .own = Json::List{std::int64_t{1}},
          .shared = Json()};
}

TEST(Manifest, ComesBack) {
  const std::string text = to_text(some_manifest());
  const Manifest again = parse_manifest(text, "f");
  EXPECT_EQ(again.id, "0123456789abcdef");
  ASSERT_EQ(again.indexes.size(), 2u);
  EXPECT_EQ(again.indexes[1].bytes, 345u);
  EXPECT_EQ(again.indexes[1].checksum, 0xffffffffffffffff);
  EXPECT_EQ(to_text(again), text);
}

TEST(Manifest, IsTheTextThatThePageShows) {
  const std::string start =
      "{\n  \"format\": \"muster checkpoint\",\n  \"version\": 1,\n  \"id\": \"0123456789abcdef\",\n  \"ranks\": [\n"
      "    {\"file\":\"rank-00000.json\",\"bytes\":12,\"checksum\":\"00000000000000ab\"},\n"
      "    {\"file\":\"rank-00001.json\",\"bytes\":345,\"checksum\":\"ffffffffffffffff\"}\n  ]";
  EXPECT_EQ(to_text(some_manifest()), start + ",\n  \"checksum\": \"" + to_hex(checksum_of(start)) + "\"\n}\n");
}

/// The text with this in place of that, and a checksum that agrees.
std::string changed_manifest(std::string_view from, std::string_view to) {
  std::string text = to_text(some_manifest());
  text.replace(text.find(from), from.size(), to);
  const std::size_t end = text.rfind(",\n  \"checksum\": \"");
  return text.substr(0, end) + ",\n  \"checksum\": \"" + to_hex(checksum_of(text.substr(0, end))) + "\"\n}\n";
}

TEST(Manifest, RefusesWhatItCannotHaveWritten) {
  const auto refused = [](const std::string& text, std::string_view why, std::string_view id = "MU210") {
    expect_error<CheckpointError>(id, why, [&] { parse_manifest(text, "f"); });
  };
  refused("", "not JSON");
  refused("[]", "is not a table");
  refused(changed_manifest("muster checkpoint", "another thing"), "says that its format is 'another thing'");
  refused(changed_manifest("\"version\": 1", "\"version\": 2"), "has version 2 of the checkpoint format", "MU216");
  refused(changed_manifest("\"version\": 1", "\"version\": 0"), "has version 0");
  refused(changed_manifest("\"version\": 1", "\"version\": 1.0"), "something else than a number");
  refused(changed_manifest("\"id\"", "\"ID\""), "lacks \"id\"");
  refused(changed_manifest("\"id\": ", "\"more\": 1, \"id\": "), "more than the 5 known names");
  refused(changed_manifest("rank-00001", "rank-00002"), "out of order");
  refused(changed_manifest(":345", ":-5"), "negative");
  refused(changed_manifest("00000000000000ab", "00000000000000AB"), "not 16 hexadecimal digits");
  std::string text = to_text(some_manifest());
  refused(text.substr(0, text.size() - 1), "does not agree with its own checksum");
  refused(text + " ", "does not agree with its own checksum");
  text[text.find("345")] = '4';
  refused(text, "does not agree with its own checksum");
}

TEST(Manifest, NoChangeOfABitPasses) {
  const std::string good = to_text(some_manifest());
  for (std::size_t i = 0; i < good.size() * 8; ++i) {
    std::string bad = good;
    bad[i / 8] ^= static_cast<char>(1 << i % 8);
    EXPECT_THROW(parse_manifest(bad, "f"), CheckpointError) << i;
  }
}

TEST(RankIndex, ComesBack) {
  const std::string text = to_text(some_index());
  const RankIndex again = parse_rank_index(text, "f");
  EXPECT_EQ(to_text(again), text);
  EXPECT_EQ(again.rank, 3);
  EXPECT_EQ(again.checksums, some_index().checksums);
  EXPECT_EQ(again.shards.at(0).shape, (std::vector<std::int64_t>{2, 3}));
}

TEST(RankIndex, RefusesWhatDoesNotFitTogether) {
  const auto refused = [](std::string_view from, std::string_view to, std::string_view why) {
    std::string text = to_text(some_index());
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    expect_error<CheckpointError>("MU213", why, [&] { parse_rank_index(text, "f"); });
  };
  refused("\"bytes\":9000", "\"bytes\":90000", "has 3 checksums for 22 blocks");
  refused("\"block_bytes\":4096", "\"block_bytes\":1", "has blocks of 1 bytes");
  refused("fedcba", "FEDCBA", "not hexadecimal");
  refused("[2,3]", "[2,-3]", "not a list of sizes");
  refused("[2,3]", "[2,\"3\"]", "not a list of sizes");
  refused("\"begin\":4", "\"begin\":-4", "negative");
  refused("\"rank\":3", "\"rank\":3000000000", "names the rank 3000000000");
  refused("\"own\"", "\"mine\"", "lacks \"own\"");
}

TEST(RankIndex, SurvivesTwentyThousandMutations) {
  const std::string valid = to_text(some_index()), manifest = to_text(some_manifest());
  std::mt19937 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = i % 2 ? valid : manifest;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    if (random() % 4 == 0) text.resize(random() % text.size());
    try {
      if (i % 2) parse_rank_index(text, "f");
      else parse_manifest(text, "f");
    } catch (const CheckpointError&) {}
  }
}

TEST(Manifest, KnowsTheNamesOfItsFiles) {
  EXPECT_EQ(rank_index_name(7), "rank-00007.json");
  EXPECT_EQ(rank_file_name(123456), "rank-123456.safetensors");
  for (const char* name :
       {"manifest.json", "rank-00000.json", "rank-123456.safetensors", ".rank-00000.json.abcd1234.partial"})
    EXPECT_TRUE(is_checkpoint_file_name(name)) << name;
  for (const char* name :
       {"model.safetensors", "rank-0.json", "rank-00000.txt", "manifest.json.bak", "notes.txt", ".partial"})
    EXPECT_FALSE(is_checkpoint_file_name(name)) << name;
}

TEST(Checksum, IsThatOfTheReference) {
  EXPECT_EQ(to_hex(checksum_of("")), "2d06800538d394c2");
  EXPECT_EQ(to_hex(checksum_of("a")), "e6c632b61e964e1f");
  EXPECT_EQ(to_hex(checksum_of("abc")), "78af5f94892f3950");
  EXPECT_EQ(from_hex("78af5f94892f3950"), 0x78af5f94892f3950);
  EXPECT_FALSE(from_hex("78af5f94892f395"));
  EXPECT_FALSE(from_hex("78AF5F94892F3950"));
}

TEST(Checksum, DoesNotDependOnHowTheBytesAreCut) {
  std::string bytes(100'003, '\0');
  std::mt19937 random(1);
  for (char& byte : bytes) byte = static_cast<char>(random());
  Checksum checksum;
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(random() % 3000, bytes.size() - done);
    checksum.update(bytes.data() + done, piece);
    done += piece;
  }
  EXPECT_EQ(checksum.value(), checksum_of(bytes));
  checksum.reset();
  EXPECT_EQ(checksum.value(), checksum_of(""));
}

ShardEntry shard_entry(std::int64_t begin, std::int64_t count, int rank = 0, std::vector<std::int64_t> shape = {10}) {
  return {.name = "w", .shape = std::move(shape), .begin = begin, .dtype = "F32", .count = count, .rank = rank};
}

TEST(Shards, MustCoverTheirTensorOnce) {
  EXPECT_NO_THROW(check_shards({}, "f"));
  EXPECT_NO_THROW(check_shards({shard_entry(5, 5, 1), shard_entry(0, 5)}, "f"));
  EXPECT_NO_THROW(check_shards({shard_entry(0, 10), shard_entry(3, 0, 1)}, "f"));
  EXPECT_NO_THROW(check_shards({shard_entry(0, 0, 0, {0, 5}), shard_entry(0, 0, 1, {0, 5})}, "f"));
  EXPECT_NO_THROW(check_shards({shard_entry(0, 1, 0, {})}, "f"));
  const auto refused = [](std::vector<ShardEntry> parts, std::string_view why) {
    expect_error<CheckpointError>("MU214", why, [&] { check_shards(parts, "f"); });
  };
  refused({shard_entry(0, 5), shard_entry(6, 4, 1)}, "no rank holds elements 5 to 6");
  refused({shard_entry(1, 9)}, "no rank holds elements 0 to 1");
  refused({shard_entry(0, 9)}, "no rank holds elements 9 to 10");
  refused({shard_entry(0, 10), shard_entry(0, 10, 1)}, "overlap");
  refused({shard_entry(0, 6), shard_entry(5, 5, 1)},
          "on rank 1 it has elements 5 to 10 there, which overlap elements 0 to 6 of rank 0");
  refused({shard_entry(0, 11)}, "beyond its 10");
  refused({shard_entry(0, 5), shard_entry(5, 5, 1, {5, 2})}, "shape [5, 2] and dtype F32 there, but shape [10]");
  refused({shard_entry(0, 1, 0, {INT64_MAX, 2})}, "impossible shape");
}

}  // namespace
}  // namespace muster::format
