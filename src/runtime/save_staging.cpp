#include "save_staging.h"

#include <cstdint>
#include <unordered_set>

#include "base/quantities.h"
#include "muster/base/format.h"
#include "muster/checkpoint/weights.h"
#include "muster/parallel/capabilities.h"
#include "muster/parallel/managed_model.h"

namespace muster::runtime {

std::string describe_save_staging(const std::vector<std::shared_ptr<PreparedModel>>& models,
                                  const PreparedOptimizers& optimizers, int rank) {
  std::uint64_t bytes = 0;
  const bool writes_whole = rank == 0;  // rank 0 writes tensors that are not sharded
  for (const auto& model : models) {
    std::unordered_set<const c10::TensorImpl*> cut;
    for (const auto& shard : parallel::shards_of(*model->managed))
      if (cut.insert(shard.parameter.unsafeGetTensorImpl()).second && shard.replica == 0) bytes += shard.local.nbytes();
    for (const auto& [name, tensor] : weights_of(*model->module))
      if (writes_whole && !cut.contains(tensor.unsafeGetTensorImpl())) bytes += tensor.nbytes();
  }
  for (const auto& entry : optimizers) {
    const auto optimizer = entry.lock();
    if (!optimizer) continue;
    std::vector<TensorShard> shards;
    const auto state = optimizer->state_dict("", shards);
    for (const auto& shard : shards) bytes += shard.local.nbytes();
    if (writes_whole)
      for_each_tensor(state, [&](const std::string&, const at::Tensor& tensor) { bytes += tensor.nbytes(); });
  }
  return formatted(
      "asynchronous saves: {} of this rank's state is staged in pinned memory, of which 5 % more at most "
      "is taken",
      size_text(bytes));
}

}  // namespace muster::runtime
