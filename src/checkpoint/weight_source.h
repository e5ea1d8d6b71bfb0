#pragma once

#include <ATen/core/Tensor.h>

#include "format/input_file.h"
#include "format/safetensors.h"

namespace muster::checkpoint {

/// A tensor in an open file.
struct StoredTensor {
  format::TensorEntry entry;
  std::shared_ptr<format::InputFile> file;
  std::vector<int64_t> shape;  ///< shape in LibTorch
  at::ScalarType type;
};

/// All tensors of a file or a set of files, by name; checked against the index if there is one.
struct WeightSource {
  format::Metadata metadata;
  std::map<std::string, StoredTensor> tensors;
};

/// Throws: as load_file.
WeightSource open_weights(const std::filesystem::path& path);

/// A contiguous range of bytes in a file and the memory for it.
struct Transfer {
  std::shared_ptr<format::InputFile> file;
  std::uint64_t offset;
  void* to;
  std::uint64_t bytes;
};

/// The transfer of all bytes of a tensor.
Transfer whole(const StoredTensor& tensor, void* to);

/// Reads everything in large pieces, on LibTorch's intra-op threads.
/// Throws: CheckpointError MU200.
void read_all(const std::vector<Transfer>& transfers);

/// Makes copy-on-write tensors from mapped files. Each file is mapped once; the tensors made from it share the mapping
/// and keep it alive. Tensors that are not aligned to their element size are copied.
class Mappings {
 public:
  Mappings() = default;
  /// Uses an existing mapping of the file.
  Mappings(const std::shared_ptr<format::InputFile>& file, std::shared_ptr<format::MappedFile> mapping) {
    of_file_[file.get()] = std::move(mapping);
  }

  at::Tensor tensor(const StoredTensor& stored);

 private:
  std::map<const format::InputFile*, std::shared_ptr<format::MappedFile>> of_file_;
};

/// Checks that each bool is 0 or 1, as LibTorch requires.
/// Throws: CheckpointError MU201 if a tensor of booleans holds another byte.
void check_booleans(const StoredTensor& tensor);

}  // namespace muster::checkpoint
