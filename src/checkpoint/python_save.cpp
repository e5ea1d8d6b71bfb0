#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "base/shown.h"
#include "format/atomic_file.h"
#include "format/python_file.h"
#include "muster/base/error.h"
#include "muster/checkpoint/python.h"

namespace muster {
namespace {

using format::PythonFile;
using format::PythonTensor;
using format::PythonValue;

/// A part of a LibTorch storage that is written to the file as one storage.
struct StorageRange {
  c10::Storage storage;
  std::uint64_t begin = 0, end = 0;  ///< range in bytes
};

/// The range of a tensor's elements in its storage.
StorageRange range_of(const at::Tensor& tensor) {
  const auto width = static_cast<std::uint64_t>(tensor.element_size());
  std::uint64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    last += static_cast<std::uint64_t>((tensor.size(i) - 1) * tensor.stride(i));
  const auto first = static_cast<std::uint64_t>(tensor.storage_offset());
  return {tensor.storage(), first * width, (first + last + 1) * width};
}

/// Converts a state to the contents of the file. Tensors whose memory overlaps share a storage there; tensors that only
/// lie in one allocation, such as the parts of flat memory, get separate storages without other data.
class PythonOfState {
 public:
  PythonOfState(const std::filesystem::path& path, const SavePythonOptions& options) : path_(path), options_(options) {}

  PythonFile make(const State& state) {
    content_.value = of(state, "", false);
    share_memory();
    return std::move(content_);
  }

  /// The bytes of a storage on the CPU. Valid until the next call.
  std::string_view bytes_of(std::size_t storage) {
    const StorageRange& range = ranges_[storage];
    const std::uint64_t bytes = range.end - range.begin;
    if (bytes == 0) return {};
    if (range.storage.device().is_cpu()) return {static_cast<const char*>(range.storage.data()) + range.begin, bytes};
    at::Tensor all = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(range.storage.device()));
    all.set_(range.storage, static_cast<int64_t>(range.begin), {static_cast<int64_t>(bytes)}, {1});
    copy_ = all.cpu();
    return {static_cast<const char*>(copy_.const_data_ptr()), bytes};
  }

 private:
  PythonValue of(const State& state, const std::string& place, bool tuple) {
    PythonValue value;
    switch (state.kind()) {
      case State::Kind::none: return value;
      case State::Kind::boolean:
        value.kind = PythonValue::Kind::boolean;
        value.integer = state.boolean();
        return value;
      case State::Kind::integer: return PythonValue::of_integer(state.integer());
      case State::Kind::number:
        value.kind = PythonValue::Kind::number;
        value.number = state.number();
        return value;
      case State::Kind::text: return PythonValue::of_text(state.text());
      case State::Kind::tensor: return of_tensor(state.tensor(), place);
      case State::Kind::list:
        value.kind = tuple ? PythonValue::Kind::tuple : PythonValue::Kind::list;
        for (std::size_t i = 0; i < state.list().size(); ++i)
          value.items.push_back(of(state.list()[i], place + "/" + std::to_string(i), false));
        return value;
      case State::Kind::map: return of_map(state, place);
    }
    return value;
  }

  PythonValue of_map(const State& state, const std::string& place) {
    PythonValue value;
    value.kind = PythonValue::Kind::map;
    const auto& map = state.map();
    const bool integers = options_.integer_keys && std::all_of(map.begin(), map.end(), [](const auto& entry) {
                            return format::is_decimal_key(entry.first);
                          });
    for (const auto& [name, part] : map)
      value.entries.emplace_back(integers ? PythonValue::of_integer(std::stoll(name)) : PythonValue::of_text(name),
                                 of(part, place + "/" + name, options_.tuples.contains(name)));
    return value;
  }

  PythonValue of_tensor(const at::Tensor& given, const std::string& place) {
    const auto refuse = [&](const std::string& why) {
      throw CheckpointError("MU227", path_.string() + " was not written: the tensor " +
                                         in_quotes(place.empty() ? place : place.substr(1)) + " " + why);
    };
    if (!given.defined()) refuse("is undefined");
    if (given.is_meta()) refuse("is on the meta device and has no values; give it memory first");
    if (given.layout() != at::kStrided) refuse("is not dense; call to_dense() on it first");
    at::Tensor tensor = given.detach().resolve_conj().resolve_neg();
    if (!tensor.has_storage()) tensor = tensor.cpu();
    const auto* row = format::find_scalar_type(static_cast<format::ScalarType>(tensor.scalar_type()));
    if (!row)
      refuse(std::string("has dtype ") + c10::toString(tensor.scalar_type()) +
             ", which is not written; dequantize it first");
    PythonTensor view{
        .storage = 0, .type = row->type, .offset = 0, .shape = tensor.sizes().vec(), .strides = tensor.strides().vec()};
    StorageRange range;
    if (tensor.numel() > 0) range = range_of(tensor);
    if (range.end > 0 && range.end > range.storage.nbytes()) refuse("has no memory behind it now");
    content_.tensors.push_back(std::move(view));
    places_.push_back(std::move(range));
    return PythonValue::of_tensor(content_.tensors.size() - 1);
  }

  /// Merges overlapping ranges, and numbers the storages in the order of their first use.
  void share_memory() {
    std::vector<std::size_t> order(places_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto key = [&](std::size_t i) {
      return std::pair(places_[i].storage ? places_[i].storage.unsafeGetStorageImpl() : nullptr, places_[i].begin);
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    std::vector<std::size_t> group_of(places_.size());
    std::vector<StorageRange> groups;
    for (const std::size_t i : order) {
      const StorageRange& place = places_[i];
      const bool overlaps = !groups.empty() && place.end > 0 && groups.back().storage &&
                            place.storage.is_alias_of(groups.back().storage) && place.begin < groups.back().end;
      if (!overlaps) groups.push_back(place);
      groups.back().end = std::max(groups.back().end, place.end);
      group_of[i] = groups.size() - 1;
    }
    for (StorageRange& group : groups)
      group.begin -= group.begin % kWidestElement;  // views of other types start at a multiple of the widest element
    std::map<std::size_t, std::size_t> number_of;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const auto [found, fresh] = number_of.emplace(group_of[i], ranges_.size());
      const StorageRange& group = groups[group_of[i]];
      if (fresh) ranges_.push_back(group);
      if (fresh) content_.storages.push_back({.key = "", .location = "cpu", .bytes = group.end - group.begin});
      PythonTensor& tensor = content_.tensors[i];
      tensor.storage = found->second;
      if (places_[i].end > 0)
        tensor.offset =
            static_cast<std::int64_t>((places_[i].begin - group.begin) / format::dtype_info(tensor.type).bytes);
    }
  }

  static constexpr std::uint64_t kWidestElement = 16;  // size of complex128 in bytes
  const std::filesystem::path& path_;
  const SavePythonOptions& options_;
  PythonFile content_;
  std::vector<StorageRange> places_, ranges_;
  at::Tensor copy_;
};

}  // namespace

void save_python(const State& state, const std::filesystem::path& path, const SavePythonOptions& options) {
  PythonOfState maker(path, options);
  const PythonFile content = maker.make(state);
  format::AtomicFile file(path, options.durability);
  format::write_python_file(file, content, path.stem().string(),
                            [&](std::size_t storage) { return maker.bytes_of(storage); });
  file.publish();
}

}  // namespace muster
