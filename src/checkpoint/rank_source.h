#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/checkpoint_files.h"
#include "checkpoint/weight_source.h"
#include "format/input_file.h"
#include "format/manifest.h"
#include "format/safetensors.h"

namespace muster::checkpoint {

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
  std::size_t blocks() const { return index_.checksums.size(); }
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
  void read_checked_head();
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
  mutable std::shared_ptr<format::MappedFile> mapping_;
  mutable std::mutex mutex_;  ///< guard of mapping_
};

}  // namespace muster::checkpoint
