#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/checkpoint/options.h"
#include "muster/dist/communicator.h"
#include "muster/tree/state.h"

namespace muster {

/// A run of elements of a tensor that is spread over ranks.
struct Slice {
  std::string name;                  ///< Of the whole tensor; alike on all ranks that hold some of it.
  std::vector<std::int64_t> shape;   ///< Of the whole tensor.
  std::int64_t begin = 0;            ///< First element of the run, in row-major order of that shape.
  at::Tensor values;                 ///< The elements [begin, begin + values.numel()), in any shape.
};

/// What one rank gives to a checkpoint.
struct CheckpointContents {
  State shared = {};                 ///< Alike on all ranks: written from rank 0, ignored elsewhere.
  State own = {};                    ///< This rank's.
  std::vector<Slice> slices = {};    ///< All ranks' slices of one name cover their tensor exactly once.
};

/// Writes a checkpoint: a folder that appears under its name complete or not at all, in place of a former checkpoint of that
/// name. Each rank writes its own files, planned without the others; then the ranks report, and rank 0 publishes. Whatever ends
/// a rank or the machine, the former checkpoint or the new one is there to load (see Durability). The tensors' memory is read
/// while the call runs; tensors of a State that share their memory are written once.
/// Returns where it is: `folder`, or, if `options.numbered`, a new one in it: "checkpoint_7" after "checkpoint_6".
/// Throws, on all ranks alike: CheckpointError MU202 (cannot be written), MU203 (a tensor that the format cannot hold), MU211
/// (another writer is at it), MU212 (something else stands there), MU214 (slices do not fit together); CommError if ranks are lost.
/// Collective: every rank of the group. All ranks must see the same folder.
std::filesystem::path write_checkpoint(const CheckpointContents& contents, const std::filesystem::path& folder,
                                       const dist::Communicator& group = {}, const WriteCheckpointOptions& options = {});

/// Writes checkpoints while training goes on. One at a time: a second start waits for the first save.
/// Thread safety: one thread at a time.
class CheckpointWriter {
 public:
  /// Has a group of its own for its thread.
  /// Collective: every rank of the group.
  explicit CheckpointWriter(const dist::Communicator& group = {}, const WriteCheckpointOptions& options = {});
  /// Waits for a running save, no longer than the group's time-out; then ends it. What failed is logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Returns when the tensors are copied to host memory, which is kept and used again by the next save of the same tensors;
  /// they may be changed from then on. The rest is as in write_checkpoint, later and elsewhere.
  /// What goes wrong with it is thrown by the next call.
  /// Throws: what wait() throws about the former save, and then starts nothing.
  /// Collective: every rank of the group. It does not wait for the others.
  void start(const CheckpointContents& contents, const std::filesystem::path& folder);

  /// Waits until the save that was started last is done, and returns where it is; empty if none was started.
  /// Throws: as write_checkpoint, once for each save that failed.
  std::filesystem::path wait();

  /// Whether a save is running.
  bool busy() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

/// A tensor that is spread over the files of a checkpoint.
struct SlicedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  std::int64_t numel() const;
};

/// A checkpoint on disk, open for reading. Nothing of it is handed out before it is found whole: a missing, torn, edited or
/// foreign file is an error that names it. A cheap handle; copies share what is open.
/// Thread safety: all functions from any thread.
class Checkpoint {
 public:
  /// Throws: CheckpointError MU210 (no checkpoint, or its manifest cannot be trusted), MU213 (a file of it cannot), MU216 (of
  /// a newer version), MU200, MU201, MU207.
  /// Collective: none; any number of ranks may open the same one.
  explicit Checkpoint(const std::filesystem::path& folder, const ReadCheckpointOptions& options = {});

  const std::filesystem::path& path() const;
  /// Of the save that wrote it: another in each save.
  const std::string& id() const;
  /// Of the ranks that wrote it.
  int world_size() const;

  /// The state alike on all ranks. Its tensors are on the CPU and, unless options.map is false, share the kernel's memory of
  /// the file, copied page by page where they are written to.
  State shared() const;
  /// The state that this rank wrote.
  /// Throws: CheckpointError MU215 for a rank that there was not.
  State own(int rank) const;

  /// The tensors that are spread over the files, sorted by name.
  const std::vector<SlicedTensor>& sliced() const;
  /// Throws: CheckpointError MU215, with the names there are.
  const SlicedTensor& sliced(std::string_view name) const;

  /// Fills `to` with the elements [begin, begin + to.numel()) of a sliced tensor, reading only their bytes (and, if blocks are
  /// checked as they are read, the rest of the blocks at either end).
  /// Requires: `to` is contiguous and on the CPU.
  /// Throws: CheckpointError MU215 for another dtype, a name that is not there, or a range beyond its end; MU213, MU200.
  void read(std::string_view name, std::int64_t begin, const at::Tensor& to) const;
  /// The same into a new tensor of one dimension.
  at::Tensor read(std::string_view name, std::int64_t begin, std::int64_t end) const;

  /// Bytes of sliced tensors that read() took from files so far.
  std::uint64_t bytes_read() const;

 private:
  class Files;
  std::shared_ptr<Files> files_;
};

/// The checkpoint with the highest number in a folder of numbered ones that is whole by its manifest, its ranks' indexes and the
/// sizes of their files; nothing if there is none. What has a higher number and is passed over is warned of, with the reason.
/// Collective: none; where ranks load together, let one of them choose.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

}  // namespace muster
