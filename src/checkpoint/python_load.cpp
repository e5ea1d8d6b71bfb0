#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "muster/base/detail/log.h"
#include "muster/base/detail/shown.h"
#include "muster/base/error.h"
#include "muster/checkpoint/python.h"
#include "muster/format/detail/input_file.h"
#include "muster/format/detail/python_file.h"
#include "muster/format/detail/zip.h"

namespace muster {
namespace {

using format::PythonFile;
using format::PythonStorage;
using format::PythonTensor;
using format::PythonValue;
using Kind = PythonValue::Kind;

[[noreturn]] void refuse_content(const std::filesystem::path& path, const std::string& place, const std::string& what) {
  throw CheckpointError("MU226", path.string() + ": " + (place.empty() ? "it" : in_quotes(place)) + " is " + what);
}

/// The file's storages as LibTorch's.
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
  /// Nothing if elements would not lie aligned there.
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

  static constexpr std::size_t kWidestAlignment = 16;
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
  // By hand: from_blob() would make a storage of its own, and what shares memory in the file shares it here, too.
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
  StateOfPython(std::vector<at::Tensor> tensors, const std::filesystem::path& path, bool leave_out)
      : tensors_(std::move(tensors)), path_(path), leave_out_(leave_out) {}

  State of(const PythonValue& value, const std::string& place) const {
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
      case Kind::foreign: break;
    }
    refuse_content(path_, place,
                   "an object of '" + value.text + "', which is not understood: " + format::advice_about(value.text) +
                       ", or load with leave_out");
  }

 private:
  bool leaves_out(const PythonValue& value, const std::string& place) const {
    if (!leave_out_ || value.kind != Kind::foreign) return false;
    log::warning(path_.string(), ": left out ", in_quotes(place), ", an object of '", value.text, "'");
    return true;
  }

  static std::string below(const std::string& place, const std::string& name) {
    return place.empty() ? name : place + "/" + name;
  }

  State list_of(const PythonValue& value, const std::string& place) const {
    State::List list;
    for (std::size_t i = 0; i < value.items.size(); ++i) {
      const std::string here = below(place, std::to_string(i));
      if (!leaves_out(value.items[i], here)) list.push_back(of(value.items[i], here));
    }
    return list;
  }

  State map_of(const PythonValue& value, const std::string& place) const {
    State::Map map;
    for (const auto& [key, part] : value.entries) {
      const bool named = key.kind == Kind::text || key.kind == Kind::bytes;
      if (!named && key.kind != Kind::integer)
        refuse_content(path_, place, "a dictionary with a key that is neither text nor an integer");
      const std::string name = named ? key.text : std::to_string(key.integer);
      const std::string here = below(place, name);
      if (!leaves_out(part, here)) map.emplace_back(name, of(part, here));
    }
    return map;
  }

  std::vector<at::Tensor> tensors_;
  const std::filesystem::path& path_;
  bool leave_out_;
};

}  // namespace

State load_python(const std::filesystem::path& path, const LoadPythonOptions& options) {
  const auto input = std::make_shared<const format::InputFile>(path);
  const PythonFile file = format::read_python_file(format::source_of(input));
  OpenStorages opener(*input, options);
  std::vector<c10::Storage> storages;
  for (const PythonStorage& storage : file.storages) storages.push_back(opener.open(storage));
  std::vector<at::Tensor> tensors;
  for (const PythonTensor& tensor : file.tensors) tensors.push_back(view_of(storages[tensor.storage], tensor, path));
  return StateOfPython(std::move(tensors), path, options.leave_out).of(file.value, "");
}

}  // namespace muster
