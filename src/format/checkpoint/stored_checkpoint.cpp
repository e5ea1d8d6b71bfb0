#include "format/checkpoint/stored_checkpoint.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>
#include <vector>

#include "format/checksum.h"
#include "format/manifest.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using Made = PythonValue::Kind;
constexpr std::uint64_t kMaxIndexText = 1'000'000'000;  // limit on a manifest or an index in bytes

[[noreturn]] void refuse_part(const fs::path& file, const std::string& what) {
  throw CheckpointError("MU213",
                        file.string() + " " + what + "; the checkpoint was edited, torn, or put together from two");
}

Manifest manifest_of(const fs::path& folder) {
  return parse_manifest(InputFile(folder / kManifestName).read_text(kMaxIndexText), (folder / kManifestName).string());
}

/// The files of one rank and the values of its states.
class RankContent {
 public:
  RankContent(StoredContent& stored, const fs::path& folder, const Manifest& manifest, int rank)
      : stored_(stored), index_path_(folder / rank_index_name(rank)), file_path_(folder / rank_file_name(rank)) {
    const InputFile text_file(index_path_);
    const std::string text = text_file.read_text(kMaxIndexText);
    const FileMark& mark = manifest.indexes[static_cast<std::size_t>(rank)];
    if (text.size() != mark.bytes || checksum_of(text) != mark.checksum)
      refuse_part(index_path_, "is not the file that the manifest knows");
    index = parse_rank_index(text, index_path_.string());
    if (index.id != manifest.id || index.rank != rank) refuse_part(index_path_, "is of another save or rank");
    file_ = std::make_shared<const InputFile>(file_path_);
    if (file_->size() != index.file_bytes) refuse_part(file_path_, "has another size than its index knows");
    for (TensorEntry& entry : read_header(*file_).tensors) {
      std::string name = entry.name;
      entries_.emplace(std::move(name), std::move(entry));
    }
  }

  RankIndex index;

  const TensorEntry& entry(const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) refuse_part(index_path_, "names a tensor that is not in the rank's file");
    return found->second;
  }
  const std::shared_ptr<const InputFile>& file() const { return file_; }

  /// The state in the JSON, whose format docs/formats/checkpoint.md describes.
  PythonValue value(const Json& json) {
    PythonValue made;
    if (json.is_null()) return made;
    if (const auto* truth = json.get<bool>()) {
      made.kind = Made::boolean;
      made.integer = *truth;
    } else if (const auto* integer = json.get<std::int64_t>()) {
      made = PythonValue::of_integer(*integer);
    } else if (const auto* number = json.get<double>()) {
      made.kind = Made::number;
      made.number = *number;
    } else if (const auto* text = json.get<std::string>()) {
      made = PythonValue::of_text(*text);
    } else if (const auto* list = json.get<Json::List>()) {
      made.kind = Made::list;
      for (const Json& item : *list) made.items.push_back(value(item));
    } else {
      made = marked(*json.get<Json::Map>());
    }
    return made;
  }

 private:
  PythonValue marked(const Json::Map& map) {
    if (map.size() != 1) refuse_part(index_path_, "has a state that cannot be understood");
    const auto& [mark, content] = map.front();
    const auto* text = content.get<std::string>();
    if (const auto* named = mark == "map" ? content.get<Json::Map>() : nullptr) return of_map(*named);
    if (mark == "tensor" && content.is_null()) return {};
    if (mark == "tensor" && text) return tensor(*text);
    if (mark == "bytes" && text) return PythonValue::of_text(bytes_of_hex(*text), Made::bytes);
    PythonValue made;
    made.kind = Made::number;
    const auto bits = mark == "number" && text ? from_hex(*text) : std::nullopt;
    if (!bits) refuse_part(index_path_, "has a state that cannot be understood");
    made.number = std::bit_cast<double>(*bits);
    return made;
  }

  /// If all names are integers, they were integer keys in Python.
  PythonValue of_map(const Json::Map& named) {
    PythonValue made;
    made.kind = Made::map;
    const bool integers =
        std::all_of(named.begin(), named.end(), [](const auto& entry) { return is_decimal_key(entry.first); });
    for (const auto& [name, part] : named)
      made.entries.emplace_back(
          integers ? PythonValue::of_integer(std::stoll(name)) : PythonValue::of_text(unescaped(name)), value(part));
    return made;
  }

  PythonValue tensor(const std::string& name) {
    const auto [place, fresh] = made_.emplace(name, 0);
    if (!fresh) return PythonValue::of_tensor(place->second);
    PythonValue made = add_tensor(stored_, file_, entry(name));
    place->second = static_cast<std::size_t>(made.integer);
    return made;
  }

  std::string bytes_of_hex(const std::string& digits) const {
    std::string bytes;
    for (std::size_t i = 0; i < digits.size(); i += 2) {
      const auto byte = i + 2 <= digits.size() ? from_hex("00000000000000" + digits.substr(i, 2)) : std::nullopt;
      if (!byte) refuse_part(index_path_, "has bytes that are not hexadecimal");
      bytes += static_cast<char>(*byte);
    }
    return bytes;
  }

  std::string unescaped(const std::string& name) const {
    std::string text;
    for (std::size_t i = 0; i < name.size(); ++i) {
      if (name[i] == '%') {
        text += bytes_of_hex(name.substr(i + 1, 2));
        i += 2;
      } else {
        text += name[i];
      }
    }
    return text;
  }

  StoredContent& stored_;
  fs::path index_path_, file_path_;
  std::shared_ptr<const InputFile> file_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::size_t> made_;
};

/// A tensor that is sharded over the ranks' files, assembled from its shards, which are in order.
PythonValue full_tensor(StoredContent& stored, const std::vector<RankContent>& ranks,
                        std::span<const ShardEntry> shards) {
  const ShardEntry& first = shards.front();
  TensorEntry full;
  full.name = first.name;
  full.shape = first.shape;
  full.type = *element_type(first.dtype);
  std::vector<Extent> extents;
  const auto add = [&](const ShardEntry& shard) {
    extents.push_back({ranks[static_cast<std::size_t>(shard.rank)].file(), shard.offset, shard.bytes});
    full.bytes += shard.bytes;
  };
  for (const ShardEntry& shard : shards)
    if (shard.bytes > 0) add(shard);
  if (extents.empty()) add(first);
  PythonValue made = add_tensor(stored, extents.front().file, full);
  stored.extents.back() = std::move(extents);
  return made;
}

PythonValue sharded_tensors(StoredContent& stored, const std::vector<RankContent>& ranks, const fs::path& folder) {
  std::vector<ShardEntry> shards;
  for (const RankContent& rank : ranks)
    for (const ShardEntry& shard : rank.index.shards) {
      const TensorEntry& values = rank.entry(shard.tensor);
      if (values.shape.size() != 1) refuse_part(folder, "has a shard of more than one dimension");
      shards.push_back(located(shard, values, values.shape[0], rank.index.rank));
    }
  shards = check_shards(std::move(shards), folder.string());
  PythonValue made;
  made.kind = Made::map;
  for (auto first = shards.cbegin(), end = first; first != shards.cend(); first = end) {
    end = std::find_if(first, shards.cend(), [&](const ShardEntry& shard) { return shard.name != first->name; });
    made.entries.emplace_back(PythonValue::of_text(first->name), full_tensor(stored, ranks, {first, end}));
  }
  return made;
}

}  // namespace

void check_checkpoint_values(const fs::path& folder) {
  const Manifest manifest = manifest_of(folder);
  std::vector<char> piece(1 << 20);
  for (int rank = 0; rank < static_cast<int>(manifest.indexes.size()); ++rank) {
    const fs::path index_path = folder / rank_index_name(rank);
    const RankIndex index = parse_rank_index(InputFile(index_path).read_text(kMaxIndexText), index_path.string());
    const InputFile file(folder / rank_file_name(rank));
    if (file.size() != index.file_bytes) refuse_part(file.path(), "has another size than its index knows");
    Checksum sum;
    for (std::uint64_t at = 0, block = 0; at < index.file_bytes; ++block, sum.reset()) {
      const std::uint64_t end = std::min(at + index.block_bytes, index.file_bytes);
      for (; at < end; at += std::min<std::uint64_t>(piece.size(), end - at)) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), end - at));
        file.read_at(at, piece.data(), bytes);
        sum.update(piece.data(), bytes);
      }
      if (sum.value() != index.checksums[block])
        refuse_part(file.path(), "has values that are not those that were saved, before byte " + std::to_string(end));
    }
  }
}

StoredContent open_checkpoint(const fs::path& folder) {
  const Manifest manifest = manifest_of(folder);
  StoredContent stored;
  stored.kind = "checkpoint folder of " + std::to_string(manifest.indexes.size()) +
                (manifest.indexes.size() == 1 ? " rank" : " ranks");
  stored.is_checkpoint = true;
  std::vector<RankContent> ranks;
  for (std::size_t rank = 0; rank < manifest.indexes.size(); ++rank)
    ranks.emplace_back(stored, folder, manifest, static_cast<int>(rank));
  PythonValue own, &all = stored.content.value;
  own.kind = Made::list;
  all.kind = Made::map;
  PythonValue shared = ranks.empty() ? PythonValue() : ranks.front().value(ranks.front().index.shared);
  for (RankContent& rank : ranks) own.items.push_back(rank.value(rank.index.own));
  PythonValue sliced = sharded_tensors(stored, ranks, folder);
  all.entries.emplace_back(PythonValue::of_text("shared"), std::move(shared));
  all.entries.emplace_back(PythonValue::of_text("own"), std::move(own));
  all.entries.emplace_back(PythonValue::of_text("sliced"), std::move(sliced));
  return stored;
}

}  // namespace muster::format
