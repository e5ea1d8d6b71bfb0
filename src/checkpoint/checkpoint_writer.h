#pragma once

#include <ATen/core/Tensor.h>

#include "checkpoint/save_target.h"
#include "device/order.h"
#include "format/json.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/weights.h"

namespace muster::checkpoint {

/// The data that one rank writes, planned without the others.
struct RankSavePlan {
  NamedTensors tensors;     ///< tensors by their names in the rank's file; empty once they are copied elsewhere
  format::FilePlan layout;  ///< layout of that file
  std::vector<format::ShardEntry> shards;  ///< shards; those without elements have no tensor and are not in the index
  format::Json own, shared;
};

/// Throws: CheckpointError MU203 for a tensor or a state that the format cannot hold, MU214 for a repeated shard.
RankSavePlan plan_rank(const CheckpointContents& contents, int rank, const std::filesystem::path& folder);

/// Copies the tensors' bytes, in file order, to memory that is reused for later saves.
class HostBuffer {
 public:
  /// Copies the tensors of `plan` and then releases them. Tensors on a device are copied in the order of its current
  /// stream, without waiting for it. Throws: CheckpointError MU202, MU565 if there is not enough memory.
  void take(RankSavePlan& plan);
  /// The bytes that take() copied: the whole file after its head, in pieces. Waits for copies.
  std::vector<std::string_view> bytes() const;
  std::uint64_t memory_bytes() const;

 private:
  void take_from(at::Device device, const RankSavePlan& plan);

  std::vector<at::Tensor> memory_;
  device::Event copied_;
  std::size_t filled_ = 0;
};

/// Writes a rank's two files. `taken` holds the tensors' bytes if `plan` no longer has the tensors. Returns the mark of
/// its index. `go_on` is called from time to time; if it returns false, writing stops with an error.
/// Throws: CheckpointError MU202; exceptions of `create` and its files.
format::FileMark write_rank(const RankSavePlan& plan, const HostBuffer* taken, const CreateFile& create, int rank,
                            const std::string& id, const std::function<bool()>& go_on);

}  // namespace muster::checkpoint
