// Feeds bytes to the readers of a checkpoint's text files. The first byte chooses the reader.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "format/checksum.h"
#include "format/json.h"
#include "format/manifest.h"
#include "fuzz.h"
#include "muster/base/error.h"

namespace {

using namespace muster::format;  // NOLINT(google-build-using-namespace)

/// What is read must be written and read again alike.
void expect_same(const std::string& one, const std::string& other) {
  if (one != other) std::abort();
}

/// Without the right checksum no change would get past the first check.
std::string with_checksum(std::string_view start) {
  return std::string(start) + ",\n  \"checksum\": \"" + to_hex(checksum_of(start)) + "\"\n}\n";
}

void read(std::uint8_t which, std::string_view text) {
  if (which % 4 == 0) {
    const std::string again = to_text(parse_json(text, "f", "MU210"));
    expect_same(to_text(parse_json(again, "f", "MU210")), again);
  } else if (which % 4 == 1) {
    const std::string again = to_text(parse_manifest(with_checksum(text), "f"));
    expect_same(to_text(parse_manifest(again, "f")), again);
  } else if (which % 4 == 2) {
    const RankIndex index = parse_rank_index(text, "f");
    const std::string again = to_text(index);
    expect_same(to_text(parse_rank_index(again, "f")), again);
    std::vector<ShardEntry> shards = index.shards;
    for (ShardEntry& shard : shards) shard.count = static_cast<std::int64_t>(which);
    check_shards(shards, "f");
  } else {
    parse_manifest(text, "f");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const muster::CheckpointError& error) {
    muster::fuzz::check_message(error.what());
  }
  return 0;
}
