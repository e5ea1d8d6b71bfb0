#include "format/manifest.h"

#include <regex>
#include <tuple>

#include "base/text.h"
#include "format/checksum.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::format {
namespace {

constexpr std::string_view kManifestFormat = "muster checkpoint";
constexpr std::string_view kIndexFormat = "muster rank";
constexpr std::string_view kChecksumLine = ",\n  \"checksum\": \"";
constexpr std::string_view kManifestEnd = "\"\n}\n";

/// A JSON map whose names must all be read, each with its type.
class Fields {
 public:
  Fields(const Json& value, std::string_view place, std::string_view file, std::string_view id)
      : place_(place), file_(file), id_(id) {
    map_ = value.get<Json::Map>();
    if (!map_) refuse("is not a table");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw CheckpointError(id_, std::string(file_) + ": " + std::string(place_) + " " + what +
                                   "; the file was edited or is none of Muster's: take the checkpoint from where it "
                                   "was copied, or an older one");
  }

  const Json& value(std::string_view name) {
    ++asked_;
    for (const auto& [known, value] : *map_)
      if (known == name) return value;
    refuse("lacks \"" + std::string(name) + "\"");
  }

  template <class T>
  const T& as(std::string_view name, std::string_view kind) {
    if (const T* found = value(name).get<T>()) return *found;
    refuse("has something else than " + std::string(kind) + " as \"" + std::string(name) + "\"");
  }

  const std::string& text(std::string_view name) { return as<std::string>(name, "text"); }
  const Json::List& list(std::string_view name) { return as<Json::List>(name, "a list"); }

  std::int64_t count(std::string_view name) {
    const auto number = as<std::int64_t>(name, "a number");
    if (number < 0) refuse("has a negative \"" + std::string(name) + "\"");
    return number;
  }

  std::uint64_t checksum(std::string_view name) {
    if (const auto value = from_hex(text(name))) return *value;
    refuse("has a \"" + std::string(name) + "\" that is not 16 hexadecimal digits");
  }

  /// Unread names are refused: a later version may have stored something important there.
  void expect_no_more() const {
    if (asked_ != map_->size()) refuse("has more than the " + std::to_string(asked_) + " known names");
  }

 private:
  const Json::Map* map_ = nullptr;
  std::size_t asked_ = 0;
  std::string_view place_, file_, id_;
};

void check_version(Fields& fields, std::string_view wanted, std::string_view file) {
  if (fields.text("format") != wanted) fields.refuse("says that its format is " + in_quotes(fields.text("format")));
  const std::int64_t version = fields.count("version");
  if (version > kCheckpointVersion)
    throw CheckpointError("MU216", std::string(file) + " has version " + std::to_string(version) +
                                       " of the checkpoint format, this program reads up to " +
                                       std::to_string(kCheckpointVersion) + "; load it with a newer Muster");
  if (version < 1) fields.refuse("has version " + std::to_string(version));
}

ShardEntry read_shard(const Json& value, std::string_view file) {
  Fields fields(value, "a shard", file, "MU213");
  ShardEntry shard;
  shard.name = fields.text("name");
  for (const Json& size : fields.list("shape")) {
    const auto* number = size.get<std::int64_t>();
    if (!number || *number < 0) fields.refuse("has a shape that is not a list of sizes");
    shard.shape.push_back(*number);
  }
  shard.begin = fields.count("begin");
  shard.tensor = fields.text("tensor");
  fields.expect_no_more();
  return shard;
}

void read_data_file(RankIndex& index, const Json& value, std::string_view file) {
  Fields fields(value, "\"file\"", file, "MU213");
  index.file_bytes = static_cast<std::uint64_t>(fields.count("bytes"));
  index.block_bytes = static_cast<std::uint64_t>(fields.count("block_bytes"));
  const std::string& digits = fields.text("checksums");
  fields.expect_no_more();
  constexpr std::uint64_t kSmallest = 1 << 12, kLargest = 1 << 30;  // limits of a block in bytes
  if (index.block_bytes < kSmallest || index.block_bytes > kLargest)
    fields.refuse("has blocks of " + std::to_string(index.block_bytes) + " bytes");
  const std::uint64_t blocks = index.file_bytes / index.block_bytes + (index.file_bytes % index.block_bytes != 0);
  if (digits.size() % 16 != 0 || digits.size() / 16 != blocks)
    fields.refuse("has " + std::to_string(digits.size() / 16) + " checksums for " + std::to_string(blocks) + " blocks");
  for (std::size_t i = 0; i < digits.size(); i += 16) {
    const auto checksum = from_hex(std::string_view(digits).substr(i, 16));
    if (!checksum) fields.refuse("has a checksum that is not hexadecimal");
    index.checksums.push_back(*checksum);
  }
}

Json json_of(const ShardEntry& shard) {
  Json::List shape;
  for (const std::int64_t size : shard.shape) shape.emplace_back(size);
  return Json::Map{{"name", shard.name}, {"shape", std::move(shape)}, {"begin", shard.begin}, {"tensor", shard.tensor}};
}

/// Throws: CheckpointError MU214 unless the shards of one tensor, sorted by begin, cover it exactly once.
void check_cover(std::span<const ShardEntry> shards, std::string_view folder) {
  const ShardEntry& first = shards.front();
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError("MU214", std::string(folder) + ": the shards of tensor " + in_quotes(first.name) +
                                       " do not fit together: " + what +
                                       "; nothing was saved or loaded. Each element must be held by exactly one rank");
  };
  const auto refuse_shard = [&](const ShardEntry& shard, const std::string& what) {
    refuse("on rank " + std::to_string(shard.rank) + " it " + what);
  };
  const auto range = [](std::int64_t begin, std::int64_t end) {
    return "elements " + std::to_string(begin) + " to " + std::to_string(end);
  };
  const auto range_of = [&](const ShardEntry& shard) { return range(shard.begin, shard.begin + shard.count); };
  const auto bytes = byte_count(ElementType::u8, first.shape);
  if (!bytes) refuse_shard(first, "has the impossible shape " + shape_text(first.shape));
  const auto elements = static_cast<std::int64_t>(*bytes);
  std::int64_t covered = 0;
  const auto require_covered_to = [&](std::int64_t begin) {
    if (covered < begin) refuse("no rank holds " + range(covered, begin) + " of shape " + shape_text(first.shape));
  };
  const ShardEntry* last = nullptr;
  for (const ShardEntry& shard : shards) {
    if (shard.shape != first.shape || shard.dtype != first.dtype)
      refuse_shard(shard, "has shape " + shape_text(shard.shape) + " and dtype " + shard.dtype + " there, but shape " +
                              shape_text(first.shape) + " and dtype " + first.dtype + " on rank " +
                              std::to_string(first.rank));
    if (shard.begin < 0 || shard.count < 0 || shard.begin > elements || shard.count > elements - shard.begin)
      refuse_shard(shard, "has " + range_of(shard) + " there, beyond its " + std::to_string(elements));
    if (shard.count == 0) continue;
    if (shard.begin < covered)
      refuse_shard(shard, "has " + range_of(shard) + " there, which overlap " + range_of(*last) + " of rank " +
                              std::to_string(last->rank));
    require_covered_to(shard.begin);
    covered = shard.begin + shard.count;
    last = &shard;
  }
  require_covered_to(elements);
}

}  // namespace

std::string rank_index_name(int rank) { return formatted("rank-{:05d}.json", rank); }

std::string rank_file_name(int rank) { return formatted("rank-{:05d}.safetensors", rank); }

bool is_checkpoint_file_name(std::string_view name) {
  static const std::regex pattern(
      R"(rank-\d{5,}\.(json|safetensors)|manifest\.json|\.(rank-\d{5,}\.(json|safetensors)|manifest\.json)\.[a-z0-9]{8}\.partial)");
  return std::regex_match(name.begin(), name.end(), pattern);
}

std::string to_text(const Manifest& manifest) {
  std::string text = "{\n  \"format\": \"" + std::string(kManifestFormat) +
                     "\",\n  \"version\": " + std::to_string(kCheckpointVersion) +
                     ",\n  \"id\": " + to_text(Json(manifest.id)) + ",\n  \"ranks\": [";
  for (std::size_t rank = 0; rank < manifest.indexes.size(); ++rank) {
    const FileMark& mark = manifest.indexes[rank];
    const Json entry = Json::Map{{"file", rank_index_name(static_cast<int>(rank))},
                                 {"bytes", static_cast<std::int64_t>(mark.bytes)},
                                 {"checksum", to_hex(mark.checksum)}};
    text += (rank ? ",\n    " : "\n    ") + to_text(entry);
  }
  text += "\n  ]";
  const std::string checksum = to_hex(checksum_of(text));
  return text + std::string(kChecksumLine) + checksum + std::string(kManifestEnd);
}

std::string to_text(const RankIndex& index) {
  std::string checksums;
  for (const std::uint64_t checksum : index.checksums) checksums += to_hex(checksum);
  Json::List shards;
  for (const ShardEntry& shard : index.shards) shards.push_back(json_of(shard));
  const Json file = Json::Map{{"bytes", static_cast<std::int64_t>(index.file_bytes)},
                              {"block_bytes", static_cast<std::int64_t>(index.block_bytes)},
                              {"checksums", std::move(checksums)}};
  return to_text(Json(Json::Map{{"format", std::string(kIndexFormat)},
                                {"version", kCheckpointVersion},
                                {"id", index.id},
                                {"rank", static_cast<std::int64_t>(index.rank)},
                                {"file", file},
                                {"slices", std::move(shards)},
                                {"own", index.own},
                                {"shared", index.shared}})) +
         "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file, "MU210");
  Fields fields(json, "it", file, "MU210");
  check_version(fields, kManifestFormat, file);
  Manifest manifest;
  manifest.id = fields.text("id");
  const std::uint64_t stored = fields.checksum("checksum");
  for (const Json& entry : fields.list("ranks")) {
    Fields mark(entry, "an entry of \"ranks\"", file, "MU210");
    if (mark.text("file") != rank_index_name(static_cast<int>(manifest.indexes.size())))
      mark.refuse("names the file " + in_quotes(mark.text("file")) + " out of order");
    manifest.indexes.push_back({static_cast<std::uint64_t>(mark.count("bytes")), mark.checksum("checksum")});
    mark.expect_no_more();
  }
  fields.expect_no_more();
  if (manifest.indexes.empty()) fields.refuse("names no rank");
  const std::size_t tail = kChecksumLine.size() + 16 + kManifestEnd.size();
  const bool ends_well =
      text.size() > tail && text.ends_with(kManifestEnd) && text.substr(text.size() - tail).starts_with(kChecksumLine);
  if (!ends_well || checksum_of(text.substr(0, text.size() - tail)) != stored)
    fields.refuse("does not agree with its own checksum");
  return manifest;
}

RankIndex parse_rank_index(std::string_view text, std::string_view file) {
  const Json json = parse_json(text, file, "MU213");
  Fields fields(json, "it", file, "MU213");
  check_version(fields, kIndexFormat, file);
  RankIndex index;
  index.id = fields.text("id");
  const std::int64_t rank = fields.count("rank");
  if (rank >= INT32_MAX) fields.refuse("names the rank " + std::to_string(rank));
  index.rank = static_cast<int>(rank);
  read_data_file(index, fields.value("file"), file);
  for (const Json& shard : fields.list("slices")) index.shards.push_back(read_shard(shard, file));
  index.own = fields.value("own");
  index.shared = fields.value("shared");
  fields.expect_no_more();
  return index;
}

ShardEntry located(ShardEntry shard, const TensorEntry& values, std::int64_t count, int rank) {
  shard.dtype = name_of(values.type);
  shard.count = count;
  shard.rank = rank;
  shard.offset = values.offset;
  shard.bytes = values.bytes;
  return shard;
}

std::vector<ShardEntry> check_shards(std::vector<ShardEntry> shards, std::string_view folder) {
  std::sort(shards.begin(), shards.end(), [](const ShardEntry& a, const ShardEntry& b) {
    return std::tie(a.name, a.begin, a.count, a.rank) < std::tie(b.name, b.begin, b.count, b.rank);
  });
  for (std::size_t first = 0, end = 0; first < shards.size(); first = end) {
    while (end < shards.size() && shards[end].name == shards[first].name) ++end;
    check_cover(std::span(shards).subspan(first, end - first), folder);
  }
  return shards;
}

}  // namespace muster::format
