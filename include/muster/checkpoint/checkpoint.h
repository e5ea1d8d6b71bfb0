#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/checkpoint/options.h"
#include "muster/checkpoint/storage.h"
#include "muster/comm/communicator.h"
#include "muster/shard/tensor_shard.h"
#include "muster/tree/state.h"

namespace muster {

/// What one rank gives to a checkpoint.
struct CheckpointContents {
  State shared = {};    ///< State that is equal on all ranks; only that of rank 0 is written.
  State per_rank = {};  ///< State that differs between ranks; each rank writes its own.
  /// The shards that all ranks give under one name cover their tensor exactly once; `order` and `replica` are not used.
  std::vector<TensorShard> shards = {};
};

/// Writes a checkpoint: a folder, or files in options.storage. It appears under its name complete or not at all, and
/// replaces an earlier checkpoint of that name. Each rank plans and writes its own files without the others; then the
/// ranks report, and rank 0 publishes. If a rank or the machine dies at any point, either the earlier checkpoint or the
/// new one can be loaded (see Durability). The tensors' memory is read while the call runs; tensors of a State that
/// share memory are written once.
/// Returns its path: `folder`, or, if `options.numbered`, a new folder in it: "checkpoint_7" after "checkpoint_6". In a
/// storage the path is the name, without "." and "..".
/// Throws, on all ranks alike: CheckpointError MU202 (cannot be written), MU203 (a tensor that the format cannot hold),
/// MU211 (another writer is writing it), MU212 (the path is something other than a checkpoint), MU214 (shards do not
/// fit together), MU313 (the storage failed), MU316 (not all ranks have a storage), MU317 (the path leads above the
/// storage); CommError if ranks are lost.
/// Collective: every rank of the group. All ranks must see the same folder, or the same storage.
std::filesystem::path write_checkpoint(const CheckpointContents& contents, const std::filesystem::path& folder,
                                       const comm::Communicator& group = {},
                                       const WriteCheckpointOptions& options = {});

/// Writes checkpoints while training continues, one at a time: a second start() waits for the first save.
/// Thread safety: one thread at a time.
class CheckpointWriter {
 public:
  /// Creates a separate group for the writer's thread.
  /// Collective: every rank of the group.
  explicit CheckpointWriter(const comm::Communicator& group = {}, const WriteCheckpointOptions& options = {});
  /// Waits for a running save for at most the group's time-out, then ends it. Failures are logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies the tensors to host memory and returns; the caller may then change them. Tensors on a device are copied on
  /// its current stream, so work that is queued there afterwards does not affect the copy; the calling thread does not
  /// wait. The next save of the same tensors reuses the host memory. The save itself runs in the background, as in
  /// write_checkpoint. The next call throws its errors, including MU565 if there is not enough pinned memory.
  /// Throws: what wait() throws about the previous save; then no save is started.
  /// Collective: every rank of the group. It does not wait for the others.
  void start(const CheckpointContents& contents, const std::filesystem::path& folder);

  /// Waits until the last started save is done, and returns its path; empty if none was started.
  /// Throws: as write_checkpoint, once for each save that failed.
  std::filesystem::path wait();

  /// Whether a save is running.
  bool busy() const;
  /// The size, in bytes, of the host memory that holds the copy of the last save; pinned if the tensors came from a
  /// device.
  std::uint64_t staging_bytes() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

/// A tensor that is sharded over the files of a checkpoint.
struct ShardedTensorMetadata {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  std::int64_t numel() const;
};

/// A checkpoint on disk or in a storage, open for reading. It returns data only after a check that it is complete: a
/// missing, truncated, edited or foreign file is an error that names the file. A cheap handle; copies share the open
/// files.
/// Thread safety: all functions from any thread.
class Checkpoint {
 public:
  /// Throws: CheckpointError MU210 (no checkpoint, or its manifest cannot be trusted), MU213 (one of its files cannot
  /// be trusted), MU216 (a newer version), MU314 (the storage failed), MU200, MU201, MU207.
  /// Collective: none; any number of ranks may open the same checkpoint.
  explicit Checkpoint(const std::filesystem::path& folder, const ReadCheckpointOptions& options = {});

  const std::filesystem::path& path() const;
  /// The id of the save that wrote the checkpoint; every save has a different one.
  const std::string& id() const;
  /// The number of ranks that wrote the checkpoint.
  int world_size() const;

  /// The state that all ranks share. Its tensors are on the CPU. Unless options.map is false or the checkpoint is in a
  /// storage, they map the file (copy-on-write, page by page).
  State shared() const;
  /// One entry of shared(), if that is a map with this name. Only the tensors of the entry are read.
  std::optional<State> shared_entry(std::string_view name) const;
  /// The state that the given rank wrote.
  /// Throws: CheckpointError MU215 if the checkpoint has no such rank.
  State per_rank(int rank) const;

  /// The tensors that are sharded over the files, sorted by name.
  const std::vector<ShardedTensorMetadata>& sharded() const;
  /// Throws: CheckpointError MU215, listing the existing names, for an unknown name.
  const ShardedTensorMetadata& sharded(std::string_view name) const;

  /// Fills `to` with the elements [begin, begin + to.numel()) of a sharded tensor. Reads only their bytes (and, if
  /// blocks are checked as they are read, the rest of the blocks at either end); for a tensor on a device, in pieces
  /// through pinned memory. Requires: `to` is contiguous, and on the CPU or the accelerator. Throws: CheckpointError
  /// MU215 for another dtype, an unknown name, or a range beyond the tensor's end; MU213, MU314, MU200.
  void read(std::string_view name, std::int64_t begin, const at::Tensor& to) const;
  /// Reads the elements [begin, end) into a new 1-D tensor.
  at::Tensor read(std::string_view name, std::int64_t begin, std::int64_t end) const;

  /// Bytes of sharded tensors that read() has read from files so far.
  std::uint64_t bytes_read() const;

 private:
  class Files;
  std::shared_ptr<Files> files_;
};

/// The complete checkpoint with the highest number in a folder of numbered checkpoints; nullopt if there is none.
/// Complete: judged by the manifest, the ranks' indexes and the file sizes. For each skipped checkpoint with a higher
/// number, a warning gives the reason.
/// Throws: CheckpointError MU216 (a newer version), MU314 (the storage failed).
/// Collective: none; if several ranks load together, let one of them choose.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder,
                                                       const std::shared_ptr<CheckpointStorage>& storage = {});

}  // namespace muster
