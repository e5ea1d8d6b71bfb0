#include <algorithm>
#include <tuple>

#include "base/listing.h"
#include "base/shown.h"
#include "format/manifest.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

class CoverCheck {
 public:
  explicit CoverCheck(std::string_view folder) : folder_(folder) {}

  /// Requires: `shards` all have one name, and are sorted by begin.
  void operator()(std::span<const ShardEntry> shards) const {
    const ShardEntry& first = shards.front();
    const std::int64_t elements = elements_of(first);
    std::int64_t covered = 0;
    const ShardEntry* last = nullptr;
    for (const ShardEntry& shard : shards) {
      if (shard.shape != first.shape || shard.dtype != first.dtype)
        refuse(shard, "has shape " + shape_text(shard.shape) + " and dtype " + shard.dtype + " there, but shape " +
                          shape_text(first.shape) + " and dtype " + first.dtype + " on rank " +
                          std::to_string(first.rank));
      if (shard.begin < 0 || shard.count < 0 || shard.begin > elements || shard.count > elements - shard.begin)
        refuse(shard, "has elements " + range(shard) + " there, beyond its " + std::to_string(elements));
      if (shard.count == 0) continue;
      if (shard.begin < covered)
        refuse(shard, "has elements " + range(shard) + " there, which overlap elements " + range(*last) + " of rank " +
                          std::to_string(last->rank));
      if (shard.begin > covered) refuse_gap(shard, covered, shard.begin);
      covered = shard.begin + shard.count;
      last = &shard;
    }
    if (covered < elements) refuse_gap(first, covered, elements);
  }

 private:
  static std::string range(const ShardEntry& shard) {
    return std::to_string(shard.begin) + " to " + std::to_string(shard.begin + shard.count);
  }

  std::int64_t elements_of(const ShardEntry& shard) const {
    std::int64_t elements = 1;
    bool is_empty = false;
    for (const std::int64_t size : shard.shape) {
      is_empty |= size == 0;
      if (size < 0 || __builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements))
        refuse(shard, "has the impossible shape " + shape_text(shard.shape));
    }
    return is_empty ? 0 : elements;
  }

  [[noreturn]] void refuse(const ShardEntry& shard, const std::string& what) const {
    throw CheckpointError("MU214", std::string(folder_) + ": the shards of tensor " + in_quotes(shard.name) +
                                       " do not fit together: on rank " + std::to_string(shard.rank) + " it " + what +
                                       "; nothing was saved or loaded. Each element must be held by exactly one rank");
  }

  [[noreturn]] void refuse_gap(const ShardEntry& shard, std::int64_t begin, std::int64_t end) const {
    throw CheckpointError("MU214", std::string(folder_) + ": the shards of tensor " + in_quotes(shard.name) +
                                       " do not fit together: no rank holds elements " + std::to_string(begin) +
                                       " to " + std::to_string(end) + " of shape " + shape_text(shard.shape) +
                                       "; nothing was saved or loaded. Each element must be held by exactly one rank");
  }

  std::string_view folder_;
};

}  // namespace

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
  const CoverCheck check(folder);
  for (std::size_t first = 0, end = 0; first < shards.size(); first = end) {
    while (end < shards.size() && shards[end].name == shards[first].name) ++end;
    check(std::span(shards).subspan(first, end - first));
  }
  return shards;
}

}  // namespace muster::format
