#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "base/listing.h"
#include "base/log.h"
#include "base/shown.h"
#include "checkpoint/python_content.h"
#include "format/input_file.h"
#include "format/python_file.h"
#include "format/stored_content.h"
#include "format/weight_set.h"
#include "format/zip.h"
#include "muster/base/error.h"
#include "muster/checkpoint/python.h"

namespace muster::checkpoint {
namespace {

using format::PythonFile;
using format::PythonStorage;
using format::PythonTensor;
using format::PythonValue;
using Kind = PythonValue::Kind;

/// The file's storages as LibTorch storages.
class OpenStorages {
 public:
  OpenStorages(const format::InputFile& file, const LoadPythonOptions& options) : file_(file), options_(options) {}

  c10::Storage open(const PythonStorage& storage) {
    std::byte* mapped = options_.map && storage.bytes > 0 ? place_in_mapping(storage) : nullptr;
    const auto bytes = static_cast<int64_t>(storage.bytes);
    at::Tensor memory;
    if (mapped) {
      memory = at::from_blob(
          mapped, {bytes}, [keep = mapping_](void*) mutable { keep.reset(); }, at::TensorOptions().dtype(at::kByte));
    } else {
      memory = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
      if (bytes > 0) file_.read_at(storage.offset, memory.mutable_data_ptr(), storage.bytes);
    }
    verify(storage, memory);
    return memory.storage();
  }

 private:
  /// nullptr if the elements would not be aligned there.
  std::byte* place_in_mapping(const PythonStorage& storage) {
    if (!mapping_) mapping_ = std::make_shared<format::MappedFile>(file_, format::MappedFile::Access::copy_on_write);
    std::byte* place = mapping_->data() + storage.offset;
    return reinterpret_cast<std::uintptr_t>(place) % kWidestAlignment == 0 ? place : nullptr;
  }

  void verify(const PythonStorage& storage, const at::Tensor& memory) const {
    if (!options_.verify || !storage.has_crc || storage.bytes == 0) return;
    if (format::crc32({static_cast<const char*>(memory.const_data_ptr()), storage.bytes}) != storage.crc)
      throw CheckpointError("MU225", file_.path().string() + ": the checksum of the storage " + in_quotes(storage.key) +
                                         " is wrong; the file is damaged");
  }

  static constexpr std::size_t kWidestAlignment = 16;  // alignment of complex128 in bytes
  const format::InputFile& file_;
  const LoadPythonOptions& options_;
  std::shared_ptr<format::MappedFile> mapping_;
};

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
  const auto input = std::make_shared<const format::InputFile>(path);
  const PythonFile file = format::read_python_file(format::source_of(input));
  OpenStorages opener(*input, options);
  std::vector<c10::Storage> storages;
  for (const PythonStorage& storage : file.storages) storages.push_back(opener.open(storage));
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

State load_python(const std::filesystem::path& path, const LoadPythonOptions& options) {
  auto content = checkpoint::read_python(path, options);
  if (content.left_out.empty()) return std::move(content.value);
  const auto& first = content.left_out.front();
  if (!options.leave_out || first.place.empty()) checkpoint::refuse(first, path, ", or load with leave_out");
  log::warning(path.string(), ": left out ", checkpoint::listed(content.left_out));
  return std::move(content.value);
}

}  // namespace muster
