#include "parallel/replicated/bucket_layout.h"

#include <algorithm>
#include <map>

namespace muster::parallel {

BucketLayout assign_buckets(const std::vector<BucketItem>& items, double first_bytes, double cap_bytes) {
  BucketLayout layout;
  layout.offsets.resize(items.size());
  std::map<size_t, BucketSpan> open;  // one open bucket per kind
  bool first = true;
  const auto close = [&](BucketSpan& bucket) {
    layout.buckets.push_back(bucket);
    first = false;
  };
  for (size_t n = items.size(); n-- > 0;) {
    const auto& item = items[n];
    if (layout.totals.size() <= item.kind) layout.totals.resize(item.kind + 1);
    auto& bucket = open.try_emplace(item.kind, BucketSpan{item.kind, 0, 0, {}}).first->second;
    const double cap = first ? first_bytes : cap_bytes;
    if (!bucket.items.empty() && static_cast<double>((bucket.length + item.elements) * item.element_size) > cap) {
      close(bucket);
      bucket = {item.kind, layout.totals[item.kind], 0, {}};
    }
    layout.offsets[n] = layout.totals[item.kind];
    layout.totals[item.kind] += item.elements;
    bucket.length += item.elements;
    bucket.items.push_back(n);
  }
  std::vector<BucketSpan> rest;
  for (auto& [kind, bucket] : open) rest.push_back(std::move(bucket));
  std::sort(rest.begin(), rest.end(),
            [](const BucketSpan& a, const BucketSpan& b) { return a.items.back() > b.items.back(); });
  for (auto& bucket : rest) close(bucket);
  return layout;
}

void append_layout(BucketLayout& to, const BucketLayout& more) {
  const auto first_item = to.offsets.size(), first_kind = to.totals.size();
  for (auto bucket : more.buckets) {
    bucket.kind += first_kind;
    for (auto& item : bucket.items) item += first_item;
    to.buckets.push_back(std::move(bucket));
  }
  to.offsets.insert(to.offsets.end(), more.offsets.begin(), more.offsets.end());
  to.totals.insert(to.totals.end(), more.totals.begin(), more.totals.end());
}

}  // namespace muster::parallel
