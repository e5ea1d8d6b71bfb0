#include "muster/checkpoint/python.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/python_content.h"
#include "format/atomic_file.h"
#include "format/input_file.h"
#include "format/python_file.h"
#include "format/stored_content.h"
#include "format/weight_set.h"
#include "format/zip.h"
#include "muster/base/error.h"

namespace muster::checkpoint {
namespace {

using format::PythonFile;
using format::PythonStorage;
using format::PythonTensor;
using format::PythonValue;
using Kind = PythonValue::Kind;

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
    switch (state.kind()) {
      case State::Kind::none: return {};
      case State::Kind::boolean: return {.kind = Kind::boolean, .integer = state.boolean()};
      case State::Kind::integer: return PythonValue::of_integer(state.integer());
      case State::Kind::number: return {.kind = Kind::number, .number = state.number()};
      case State::Kind::text: return PythonValue::of_text(state.text());
      case State::Kind::tensor: return of_tensor(state.tensor(), place);
      case State::Kind::list: return of_list(state.list(), place, tuple);
      case State::Kind::map: return of_map(state, place);
    }
    return {};
  }

  PythonValue of_list(const State::List& list, const std::string& place, bool tuple) {
    PythonValue value{.kind = tuple ? Kind::tuple : Kind::list};
    for (std::size_t i = 0; i < list.size(); ++i)
      value.items.push_back(of(list[i], place + "/" + std::to_string(i), false));
    return value;
  }

  PythonValue of_map(const State& state, const std::string& place) {
    PythonValue value{.kind = Kind::map};
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

/// A storage of the file in LibTorch: a part of the mapping, which the first one makes, or memory.
c10::Storage open_storage(const PythonStorage& storage, const format::InputFile& file, const LoadPythonOptions& options,
                          std::shared_ptr<format::MappedFile>& mapping) {
  constexpr std::size_t kWidestAlignment = 16;  // alignment of complex128 in bytes
  const auto bytes = static_cast<int64_t>(storage.bytes);
  const auto type = at::TensorOptions().dtype(at::kByte);
  at::Tensor memory;
  if (options.map && bytes > 0) {
    if (!mapping) mapping = std::make_shared<format::MappedFile>(file, format::MappedFile::Access::copy_on_write);
    std::byte* place = mapping->data() + storage.offset;
    if (reinterpret_cast<std::uintptr_t>(place) % kWidestAlignment == 0)
      memory = at::from_blob(
          place, {bytes}, [keep = mapping](void*) mutable { keep.reset(); }, type);
  }
  if (!memory.defined()) {
    memory = at::empty({bytes}, type);
    if (bytes > 0) file.read_at(storage.offset, memory.mutable_data_ptr(), storage.bytes);
  }
  if (options.verify && storage.has_crc && bytes > 0 &&
      format::crc32({static_cast<const char*>(memory.const_data_ptr()), storage.bytes}) != storage.crc)
    throw CheckpointError("MU225", file.path().string() + ": the checksum of the storage " + in_quotes(storage.key) +
                                       " is wrong; the file is damaged");
  return memory.storage();
}

void check_bool_bytes(const std::filesystem::path& path, const c10::Storage& storage) {
  const auto* bytes = static_cast<const unsigned char*>(storage.data());
  if (std::any_of(bytes, bytes + storage.nbytes(), [](unsigned char byte) { return byte > 1; }))
    throw CheckpointError("MU225", path.string() + ": a bool has a byte other than 0 and 1; the file is damaged");
}

at::Tensor view_of(const c10::Storage& storage, const PythonTensor& tensor, const std::filesystem::path& path) {
  const auto type = static_cast<at::ScalarType>(tensor.type);
  if (type == at::kBool) check_bool_bytes(path, storage);
  // Not from_blob(), which would make a separate storage: tensors that share memory in the file must share it here,
  // too.
  auto result = at::detail::make_tensor<at::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.shape, tensor.strides);
  impl->set_storage_offset(tensor.offset);
  if (tensor.conjugate && !at::isComplexType(type))
    throw CheckpointError("MU225", path.string() + ": a tensor that is not complex is conjugated");
  if (tensor.conjugate) impl->_set_conj(true);
  if (tensor.negative) impl->_set_neg(true);
  return result.resolve_conj().resolve_neg();
}

class StateOfPython {
 public:
  explicit StateOfPython(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  PythonContent content_of(const PythonValue& root) {
    PythonContent content;
    if (!leaves_out(root, "")) content.value = of(root, "");
    content.left_out = std::move(left_out_);
    return content;
  }

 private:
  State of(const PythonValue& value, const std::string& place) {
    switch (value.kind) {
      case Kind::none: return {};
      case Kind::boolean: return value.integer != 0;
      case Kind::integer: return value.integer;
      case Kind::number: return value.number;
      case Kind::text:
      case Kind::bytes: return value.text;
      case Kind::list:
      case Kind::tuple: return list_of(value, place);
      case Kind::map: return map_of(value, place);
      case Kind::tensor: return tensors_[static_cast<std::size_t>(value.integer)];
      case Kind::foreign: break;  // the owner leaves it out
    }
    return {};
  }

  bool leaves_out(const PythonValue& value, const std::string& place) {
    if (value.kind != Kind::foreign) return false;
    left_out_.push_back({place, "an object of '" + value.text + "'", format::advice_about(value.text)});
    return true;
  }

  static std::string below(const std::string& place, const std::string& name) {
    return place.empty() ? name : place + "/" + name;
  }

  State list_of(const PythonValue& value, const std::string& place) {
    State::List list;
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const std::string here = below(place, std::to_string(i));
      if (!leaves_out(value.items[i], here)) list.push_back(of(value.items[i], here));
    }
    return list;
  }

  State map_of(const PythonValue& value, const std::string& place) {
    State::Map map;
    for (const auto& [key, part] : value.entries) {
      const bool named = key.kind == Kind::text || key.kind == Kind::bytes;
      if (!named && key.kind != Kind::integer) {
        left_out_.push_back({below(place, format::key_name(key)), "an entry whose key is neither text nor an integer",
                             "use texts or integers as keys"});
        continue;
      }
      const std::string name = named ? key.text : std::to_string(key.integer);
      const std::string here = below(place, name);
      if (!leaves_out(part, here)) map.emplace_back(name, of(part, here));
    }
    return map;
  }

  std::vector<at::Tensor> tensors_;
  std::vector<LeftOut> left_out_;
};

PythonContent read_one(const std::filesystem::path& path, const LoadPythonOptions& options) {
  const format::InputFile input(path);
  const PythonFile file = format::read_python_file(input);
  std::shared_ptr<format::MappedFile> mapping;
  std::vector<c10::Storage> storages;
  for (const PythonStorage& storage : file.storages) storages.push_back(open_storage(storage, input, options, mapping));
  std::vector<at::Tensor> tensors;
  for (const PythonTensor& tensor : file.tensors) tensors.push_back(view_of(storages[tensor.storage], tensor, path));
  auto content = StateOfPython(std::move(tensors)).content_of(file.value);
  content.is_archive = file.form == PythonFile::Form::archive;
  return content;
}

/// Merges the entries of several files.
PythonContent read_all(const format::WeightSet& set, const LoadPythonOptions& options) {
  PythonContent all;
  State::Map entries;
  for (const auto& file : set.files) {
    auto content = read_one(file, options);
    if (content.value.kind() == State::Kind::map)
      entries.insert(entries.end(), content.value.map().begin(), content.value.map().end());
    all.left_out.insert(all.left_out.end(), content.left_out.begin(), content.left_out.end());
  }
  std::set<std::string_view> names;
  for (const auto& [name, value] : entries) names.insert(name);
  for (const auto& part : all.left_out) names.insert(part.place);
  format::require_listed(set, [&](const std::string& name) { return names.contains(name); });
  all.value = std::move(entries);
  return all;
}

std::string words_of(const LeftOut& part) { return in_quotes(part.place) + ", " + part.what; }

}  // namespace

PythonContent read_python(const std::filesystem::path& path, const LoadPythonOptions& options) {
  const auto set = format::find_weight_set(path);
  return set.index ? read_all(set, options) : read_one(set.files.at(0), options);
}

void refuse(const LeftOut& part, const std::filesystem::path& path, std::string_view more_advice) {
  throw CheckpointError("MU226", path.string() + ": " + (part.place.empty() ? "it" : in_quotes(part.place)) + " is " +
                                     part.what + ", which is not understood: " + part.advice +
                                     std::string(more_advice));
}

std::string listed(const std::vector<LeftOut>& parts) { return muster::listed(parts, words_of); }

}  // namespace muster::checkpoint

namespace muster {

void save_python(const State& state, const std::filesystem::path& path, const SavePythonOptions& options) {
  checkpoint::PythonOfState maker(path, options);
  const format::PythonFile content = maker.make(state);
  format::AtomicFile file(path, options.durability);
  format::write_python_file(file, content, path.stem().string(),
                            [&](std::size_t storage) { return maker.bytes_of(storage); });
  file.publish();
}

State load_python(const std::filesystem::path& path, const LoadPythonOptions& options) {
  auto content = checkpoint::read_python(path, options);
  if (content.left_out.empty()) return std::move(content.value);
  const auto& first = content.left_out.front();
  if (!options.leave_out || first.place.empty()) checkpoint::refuse(first, path, ", or load with leave_out");
  log::warning(path.string(), ": left out ", checkpoint::listed(content.left_out));
  return std::move(content.value);
}

}  // namespace muster
