#include "checkpoint/tied_tensors.h"

#include <unordered_map>

namespace muster::checkpoint {
namespace {

bool can_be_tied(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && !tensor.is_meta() && tensor.numel() > 0;
}

/// Compares without data pointers: a sharded model has none between steps.
bool start_at_one_place(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset();
}

}  // namespace

bool are_tied(const at::Tensor& a, const at::Tensor& b) {
  return can_be_tied(a) && can_be_tied(b) && start_at_one_place(a, b) && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

UntiedTensors drop_tied(const NamedTensors& tensors) {
  std::unordered_multimap<const void*, std::size_t> kept_at;
  std::vector<std::size_t> group_of(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    group_of[i] = i;
    if (!can_be_tied(tensors[i].second)) continue;
    const auto [first, last] = kept_at.equal_range(tensors[i].second.const_data_ptr());
    for (auto candidate = first; candidate != last; ++candidate)
      if (are_tied(tensors[candidate->second].second, tensors[i].second)) group_of[i] = candidate->second;
    if (group_of[i] == i) kept_at.emplace(tensors[i].second.const_data_ptr(), i);
  }
  // A tie is found under its first member in the given order, but kept under its first member in alphabetical order.
  std::vector<std::size_t> kept = group_of;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].first < tensors[kept[group_of[i]]].first) kept[group_of[i]] = i;
  UntiedTensors result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t own = kept[group_of[i]];
    if (own == i) result.tensors.push_back(tensors[i]);
    if (own != i) result.kept_name_of[tensors[i].first] = tensors[own].first;
  }
  return result;
}

}  // namespace muster::checkpoint
