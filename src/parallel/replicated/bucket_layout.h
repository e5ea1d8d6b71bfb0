#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::parallel {

struct BucketItem {
  int64_t elements = 0;  ///< number of elements with padding
  int64_t element_size = 0;
  size_t kind = 0;  ///< number of its dtype and device; items of one kind share flat memory
};

struct BucketSpan {
  size_t kind = 0;
  int64_t begin = 0;  ///< first element in the flat memory of the kind
  int64_t length = 0;
  std::vector<size_t> items;
};

struct BucketLayout {
  std::vector<BucketSpan> buckets;  ///< in the order in which they are communicated
  std::vector<int64_t> offsets;     ///< offset of each item in the flat memory of its kind
  std::vector<int64_t> totals;      ///< number of elements per kind
};

/// Assigns items to buckets, from the last item to the first (roughly the order in which backward reaches them). A
/// bucket has one kind and at most `cap_bytes` (the first: `first_bytes`); a larger item gets a bucket for itself. The
/// result depends only on the arguments, so it is equal on every rank.
BucketLayout assign_buckets(const std::vector<BucketItem>& items, double first_bytes, double cap_bytes);

/// Adds the layout of further items after those of `to`. Its kinds are numbered after those of `to`.
void append_layout(BucketLayout& to, const BucketLayout& more);

}  // namespace muster::parallel
