#pragma once

#include <atomic>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "base/mutex.h"
#include "checkpoint/checkpoint_files.h"
#include "format/input_file.h"
#include "format/manifest.h"
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

/// The verified files of one rank in a checkpoint. Thread safety: all functions from any thread.
class RankSource {
 public:
  /// Reads and checks the index and the head of the tensors' file. Without `check_head`, the head is trusted if it can
  /// be parsed; its bytes count as not checked.
  /// Throws: CheckpointError MU213, MU201, MU207.
  RankSource(std::shared_ptr<const CheckpointFiles> files, const format::Manifest& manifest, int rank, bool check_head);

  /// Marks all blocks as checked.
  void trust_values();

  const format::RankIndex& index() const { return index_; }
  /// Throws: CheckpointError MU213 if the tensors' file has no such tensor.
  const format::TensorEntry& entry(const std::string& name) const;
  /// A private mapping of the tensors' file for the caller, which may write to it. The first caller gets the mapping
  /// that check() used, so that its pages need not be loaded again. nullptr if the file cannot be mapped.
  std::shared_ptr<format::MappedFile> take_mapping(const format::InputFile& file) const;
  /// The tensors' file. Throws: CheckpointError MU213 if it is missing or has another size.
  std::shared_ptr<format::InputFile> open() const;

  /// Checks all blocks that are not checked yet. Throws: CheckpointError MU213 with the names of the tensors in a
  /// damaged block, MU200.
  void check();
  /// Checks the blocks [first, last), reading each of their bytes once.
  void check_blocks(std::size_t first, std::size_t last) const;
  /// As check(), for the blocks of a part of the file. Bytes resident in `mapping`, which may be null, are not read.
  void check(const format::InputFile& file, const format::MappedFile* mapping, std::uint64_t offset,
             std::uint64_t bytes) const;

  /// Fills `to` with these bytes of the tensors' file, and checks the blocks that are not checked yet. Returns the
  /// number of bytes read from the file. Throws: CheckpointError MU213, MU200.
  std::uint64_t read(std::uint64_t offset, void* to, std::uint64_t bytes) const;

 private:
  void read_index(const format::Manifest& manifest, int rank);
  void read_head();
  void read_checked_head() MUSTER_NO_THREAD_SAFETY_ANALYSIS;  // called by the constructor
  /// A block to check, with a range of its bytes to copy to `to`.
  struct Wanted {
    std::size_t block;
    std::uint64_t skip, bytes;
    char* to;
  };
  void read_block(const format::InputFile& file, const Wanted& wanted) const;
  std::uint64_t block_length(std::size_t block) const;
  void check_block(const format::InputFile& file, const format::MappedFile* mapping, std::size_t block) const;
  void compare(std::size_t block, std::uint64_t checksum) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

  std::shared_ptr<const CheckpointFiles> files_;
  std::string data_name_;
  format::RankIndex index_;
  std::unordered_map<std::string, format::TensorEntry> entries_;
  std::unique_ptr<std::atomic<bool>[]> is_checked_;  ///< one flag per block
  mutable std::shared_ptr<format::MappedFile> mapping_ MUSTER_GUARDED_BY(mutex_);
  mutable base::Mutex mutex_;
};

}  // namespace muster::checkpoint
