#include "checkpoint/saved_tensors.h"

#include <sstream>
#include <unordered_map>

#include <c10/core/ScalarType.h>

#include "base/text.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

using format::ElementType;

[[noreturn]] void refuse(const std::string& file, const std::string& name, const std::string& reason) {
  throw CheckpointError("MU203", file + " was not written: tensor " + in_quotes(name) + " " + reason);
}

// format::ScalarType has the numbers of c10::ScalarType.
static_assert(static_cast<int>(at::kFloat) == static_cast<int>(format::ScalarType::float32));
static_assert(static_cast<int>(at::kUInt64) == 29 && static_cast<int>(at::ScalarType::Float4_e2m1fn_x2) == 45);

std::optional<ElementType> stored_type(at::ScalarType scalar) {
  const auto* row = format::find_scalar_type(static_cast<format::ScalarType>(scalar));
  return row ? row->element : std::nullopt;
}

bool can_be_tied(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && !tensor.is_meta() && tensor.numel() > 0;
}

/// Compares without data pointers: a sharded model has none between steps.
bool start_at_one_place(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset();
}

}  // namespace

std::optional<at::ScalarType> scalar_type(ElementType type) {
  const auto* row = format::find_scalar_type(type);
  return row ? std::optional(static_cast<at::ScalarType>(row->type)) : std::nullopt;
}

format::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor, const std::string& file) {
  if (!tensor.defined()) refuse(file, name, "is undefined");
  if (tensor.is_meta()) refuse(file, name, "is on the meta device and has no values; give it memory first");
  if (tensor.layout() != at::kStrided) refuse(file, name, "is not dense; call to_dense() on it first");
  const auto type = stored_type(tensor.scalar_type());
  if (!type)
    refuse(file, name,
           std::string("has dtype ") + c10::toString(tensor.scalar_type()) + ", which the format has not (it has " +
               format::known_element_types() + ")");
  format::TensorSpec spec{.name = name, .shape = tensor.sizes().vec(), .type = *type};
  if (*type != ElementType::f4) return spec;
  if (spec.shape.empty())
    refuse(file, name, "has no dimension to count its pairs of 4-bit elements in; reshape it to [1]");
  spec.shape.back() *= 2;
  return spec;
}

std::vector<int64_t> shape_of(const format::TensorSpec& entry, const std::string& file) {
  if (!scalar_type(entry.type))
    throw CheckpointError("MU207", file + ": tensor " + in_quotes(entry.name) + " has dtype " +
                                       std::string(format::name_of(entry.type)) + ", which LibTorch has not");
  std::vector<int64_t> shape = entry.shape;
  if (entry.type != ElementType::f4) return shape;
  if (shape.empty() || shape.back() % 2 != 0)
    throw CheckpointError("MU207",
                          file + ": tensor " + in_quotes(entry.name) +
                              " has an odd number of 4-bit elements in its last dimension; LibTorch has only pairs");
  shape.back() /= 2;
  return shape;
}

std::string description(const at::Tensor& tensor) {
  const auto type = stored_type(tensor.scalar_type());
  std::ostringstream text;
  text << (type ? format::name_of(*type) : c10::toString(tensor.scalar_type())) << ' ' << tensor.sizes();
  return text.str();
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20, kLongest = 400;  // limits on names in a message, and on the bytes of a name
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : " ") + shown(names[i], kLongest);
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more" : text;
}

std::string mismatch(const std::string& source, const std::string& differ, const std::vector<std::string>& different,
                     const IncompatibleKeys& names, bool strict) {
  std::string problems;
  if (!different.empty()) problems += "; " + differ + ":" + list_of(different);
  if (strict && !names.missing_keys.empty()) problems += "; the " + source + " lacks:" + list_of(names.missing_keys);
  if (strict && !names.unexpected_keys.empty())
    problems += "; only the " + source + " has:" + list_of(names.unexpected_keys);
  return problems;
}

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
