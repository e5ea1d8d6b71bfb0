#include "parallel/replicated/replica.h"

#include <algorithm>
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/util/strides.h>

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
namespace {

using optim::padded;

/// Memory of the flat tensor with the sizes and strides of `like` (contiguous if `like` has gaps or overlaps). To
/// autograd it is an independent tensor, not a view, so that gradients can be detached in place, as LibTorch's
/// zero_grad does.
at::Tensor alias_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  auto alias = at::empty({0}, flat.options());
  const auto begin = flat.storage_offset() + offset;
  if (like.is_non_overlapping_and_dense()) return alias.set_(flat.storage(), begin, like.sizes(), like.strides());
  return alias.set_(flat.storage(), begin, like.sizes(), c10::contiguous_strides(like.sizes()));
}

/// The same memory as a storage of just these bytes, which keeps all of the flat memory alive. A file that saves a
/// tensor contains its whole storage.
at::Tensor own_storage(const at::Tensor& alias) {
  auto memory = c10::InefficientStdFunctionContext::makeDataPtr(
      alias.mutable_data_ptr(), [whole = alias.storage()](void*) {}, alias.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), alias.nbytes(), std::move(memory), /*allocator=*/nullptr,
                       /*resizable=*/false);
  return at::empty({0}, alias.options()).set_(storage, 0, alias.sizes(), alias.strides());
}

}  // namespace

Replica::Replica(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags, Zeros zeros)
    : zeros_(std::move(zeros)) {
  append(std::move(parameters), first_bytes, cap_bytes, flags);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): its elements are moved from
void Replica::append(std::vector<NamedTensor> parameters, double first_bytes, double cap_bytes, int64_t flags) {
  at::NoGradGuard no_grad;
  if (!buckets_.empty()) buckets_.back() = buckets_.back().narrow(0, 0, layout_.buckets.back().length);
  const auto first = parameters_.size(), first_bucket = layout_.buckets.size(), first_kind = values_.size();
  std::vector<at::TensorOptions> kinds;
  std::vector<BucketItem> items;
  for (auto& [name, tensor] : parameters) {
    const auto kind = std::ranges::find_if(kinds, [&tensor = tensor](const at::TensorOptions& one) {
      return one.dtype() == tensor.dtype() && one.device() == tensor.device();
    });
    items.push_back({padded(tensor.numel()), static_cast<int64_t>(tensor.element_size()),
                     static_cast<size_t>(kind - kinds.begin())});
    if (kind == kinds.end()) kinds.push_back(at::TensorOptions().dtype(tensor.dtype()).device(tensor.device()));
    index_[tensor.unsafeGetTensorImpl()] = parameters_.size();
    parameters_.push_back({std::move(name), std::move(tensor), {}, {}, nullptr, 0});
  }
  if (items.empty()) return;
  append_layout(layout_, assign_buckets(items, first_bytes, cap_bytes));
  allocate(first_bucket, kinds, flags);
  for (size_t b = first_bucket; b < layout_.buckets.size(); ++b)
    for (const auto i : layout_.buckets[b].items) parameters_[i].bucket = b;
  for (size_t i = 0; i < items.size(); ++i) place(first + i, first_kind + items[i].kind);
}

void Replica::allocate(size_t first_bucket, const std::vector<at::TensorOptions>& kinds, int64_t flags) {
  const auto first_kind = values_.size();
  const auto& last = layout_.buckets.back();
  const auto last_total = layout_.totals[last.kind];
  const auto& last_kind = kinds[last.kind - first_kind];
  // The host reads the flags, and should not wait for a device.
  flags_are_apart_ = !last_kind.device().is_cpu();
  if (flags_are_apart_) flags_ = at::zeros({flags}, at::kDouble);
  const auto room = flags_are_apart_ ? 0 : padded(flags);
  for (size_t k = 0; k < kinds.size(); ++k) {
    const auto total = layout_.totals[first_kind + k], extra = first_kind + k == last.kind ? room : 0;
    values_.push_back(at::zeros({total}, kinds[k]));
    gradients_.push_back(zeros_(total + extra, kinds[k]));
  }
  for (size_t b = first_bucket; b < layout_.buckets.size(); ++b) {
    const auto& bucket = layout_.buckets[b];
    const auto extra = &bucket == &last ? room : 0;
    buckets_.push_back(own_storage(gradients_[bucket.kind].narrow(0, bucket.begin, bucket.length + extra)));
  }
  if (!flags_are_apart_) flags_ = gradients_[last.kind].narrow(0, last_total, flags);
}

void Replica::place(size_t index, size_t kind) {
  auto& parameter = parameters_[index];
  const auto offset = layout_.offsets[index], length = padded(parameter.tensor.numel());
  const auto value = alias_like(values_[kind], offset, parameter.tensor);
  value.copy_(parameter.tensor);
  // Moves the user's tensor itself, so that modules, optimizers and hooks that hold it see the flat memory.
  parameter.tensor.set_data(own_storage(value));
  const auto& bucket = buckets_[parameter.bucket];
  const auto in_bucket = offset - layout_.buckets[parameter.bucket].begin;
  parameter.local = {values_[kind].narrow(0, offset, length), bucket.narrow(0, in_bucket, length)};
  parameter.gradient = alias_like(bucket, in_bucket, parameter.tensor);
  parameter.data = parameter.tensor.const_data_ptr();
}

const ReplicaParameter* Replica::find(const at::Tensor& tensor) const {
  const auto found = index_.find(tensor.unsafeGetTensorImpl());
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

void Replica::release_kept_gradient(size_t i) {
  auto& parameter = parameters_[i];
  auto& shown = parameter.gradient;
  if (shown.use_count() == 1 || parameter.tensor.mutable_grad().is_same(shown)) return;
  at::NoGradGuard no_grad;
  const auto in_bucket = layout_.offsets[i] - layout_.buckets[parameter.bucket].begin;
  const at::Tensor kept = std::exchange(shown, alias_like(buckets_[parameter.bucket], in_bucket, parameter.tensor));
  kept.set_data(kept.clone());
}

std::vector<GradientBucket> Replica::hook_buckets() const {
  std::vector<GradientBucket> all;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const auto& span = layout_.buckets[b];
    GradientBucket bucket{b, b + 1 == layout_.buckets.size(), buckets_[b].narrow(0, 0, span.length), {}, {}, {}};
    for (const auto i : span.items) {
      bucket.names.push_back(parameters_[i].name);
      const auto& gradient = parameters_[i].gradient;
      const auto place = bucket.flat.narrow(0, layout_.offsets[i] - span.begin, gradient.numel());
      if (gradient.dim() < 2 || gradient.numel() == 0) {
        bucket.rest.push_back(place);
      } else {
        const auto outer =
            std::max_element(gradient.strides().begin(), gradient.strides().end()) - gradient.strides().begin();
        bucket.matrices.push_back(place.view({gradient.size(outer), -1}));
      }
    }
    all.push_back(std::move(bucket));
  }
  return all;
}

}  // namespace muster::parallel
