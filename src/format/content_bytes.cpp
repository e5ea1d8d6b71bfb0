#include <algorithm>
#include <cstring>

#include "base/shown.h"
#include "format/stored_content.h"
#include "format/zip.h"
#include "muster/base/error.h"

namespace muster::format {
namespace {

/// Copies the elements of a strided tensor in row-major order.
class Gathering {
 public:
  Gathering(const PythonTensor& tensor, const char* from, char* to)
      : tensor_(tensor), from_(from), to_(to), width_(dtype_info(tensor.type).bytes) {}

  void run() { copy(0, tensor_.offset); }

 private:
  void copy(std::size_t dimension, std::int64_t at) {
    if (dimension == tensor_.shape.size()) {
      std::memcpy(to_, from_ + at * width_, static_cast<std::size_t>(width_));
      to_ += width_;
      return;
    }
    if (dimension + 1 == tensor_.shape.size() && tensor_.strides[dimension] == 1) {
      const std::int64_t bytes = tensor_.shape[dimension] * width_;
      std::memcpy(to_, from_ + at * width_, static_cast<std::size_t>(bytes));
      to_ += bytes;
      return;
    }
    for (std::int64_t i = 0; i < tensor_.shape[dimension]; ++i)
      copy(dimension + 1, at + i * tensor_.strides[dimension]);
  }

  const PythonTensor& tensor_;
  const char* from_;
  char* to_;
  std::int64_t width_;
};

}  // namespace

std::uint64_t dense_bytes(const PythonTensor& tensor) {
  return static_cast<std::uint64_t>(element_count(tensor.shape)) * dtype_info(tensor.type).bytes;
}

std::string_view ContentBytes::of_storage(std::size_t storage) {
  const auto bytes_of = [&](const Extent& extent) -> std::string_view {
    if (extent.bytes == 0) return {};
    auto& mapping = mappings_[extent.file.get()];
    if (!mapping) mapping = std::make_unique<MappedFile>(*extent.file, MappedFile::Access::read);
    return {reinterpret_cast<const char*>(mapping->data()) + extent.offset, extent.bytes};
  };
  const auto& extents = content_.extents[storage];
  if (extents.size() != 1) {
    joined_.clear();
    for (const Extent& extent : extents) joined_ += bytes_of(extent);
    return joined_;
  }
  const std::string_view bytes = bytes_of(extents.front());
  const PythonStorage& known = content_.content.storages[storage];
  checked_.resize(content_.content.storages.size());
  if (known.has_crc && !checked_[storage] && crc32(bytes) != known.crc)
    throw CheckpointError("MU225", extents.front().file->path().string() + ": the checksum of the storage " +
                                       in_quotes(known.key) + " is wrong; the file is damaged");
  checked_[storage] = true;
  return bytes;
}

std::string_view ContentBytes::of_tensor(const PythonTensor& tensor) {
  constexpr std::uint64_t kFree = std::uint64_t{1} << 30, kMostOften = 1024;
  const std::string_view storage = of_storage(tensor.storage);
  const std::uint64_t bytes = dense_bytes(tensor);
  if (tensor.conjugate || tensor.negative)
    throw CheckpointError(
        "MU229",
        "a tensor is lazily conjugated or negated, which only LibTorch can resolve; call resolve_conj() and "
        "resolve_neg() on it before it is saved");
  if (bytes > kFree && bytes / kMostOften > storage.size())
    throw CheckpointError("MU229", "a tensor repeats " + std::to_string(storage.size()) + " bytes until they are " +
                                       std::to_string(bytes) + "; save it before it is expanded");
  std::string_view result;
  if (is_dense(tensor)) {
    if (bytes > 0)
      result = storage.substr(static_cast<std::size_t>(tensor.offset) * dtype_info(tensor.type).bytes, bytes);
  } else {
    gathered_.resize(bytes);
    Gathering(tensor, storage.data(), gathered_.data()).run();
    result = gathered_;
  }
  if (tensor.type == ScalarType::boolean &&
      std::any_of(result.begin(), result.end(), [](char byte) { return byte != 0 && byte != 1; }))
    throw CheckpointError("MU225", "a bool has a byte other than 0 and 1; the file is damaged");
  return result;
}

}  // namespace muster::format
