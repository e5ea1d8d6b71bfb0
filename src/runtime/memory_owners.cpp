#include "memory_owners.h"

#include <unordered_set>

#include "base/text.h"
#include "device/memory.h"
#include "muster/base/format.h"
#include "muster/optim/optimizer_state.h"
#include "muster/runtime/batch_size_search.h"
#include "parallel/sharded_model.h"

namespace muster::runtime {
namespace {

constexpr std::string_view kId = "MU576";

/// Counts each storage of one device once, however many tensors use it.
class DistinctMemory {
 public:
  explicit DistinctMemory(at::Device device) : device_(device) {}
  /// The size in bytes of the tensor's storage; 0 if it was counted before.
  int64_t add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() != device_ || !tensor.has_storage()) return 0;
    const auto& storage = tensor.storage();
    return counted_.insert(storage.unsafeGetStorageImpl()).second ? static_cast<int64_t>(storage.nbytes()) : 0;
  }

 private:
  at::Device device_;
  std::unordered_set<const c10::StorageImpl*> counted_;
};

struct Owners {
  int64_t gradients = 0, parameters = 0, pools = 0, states = 0;
  int64_t sum() const { return gradients + parameters + pools + states; }
};

void add(const PreparedModel& model, DistinctMemory& memory, Owners& owners) {
  for (const auto& buffer : model.module->buffers()) owners.parameters += memory.add(buffer);
  if (const auto* sharded = dynamic_cast<const parallel::ShardedModel*>(model.managed->sharded_parameters())) {
    const auto stats = sharded->stats();
    owners.gradients += stats.gradient_bytes;
    owners.parameters += stats.held_bytes - stats.gradient_bytes;
    owners.pools += stats.temporary_bytes;
    return;
  }
  for (const auto& parameter : model.module->parameters()) {
    owners.parameters += memory.add(parameter);
    if (const auto* local = model.managed->find(parameter)) owners.gradients += memory.add(local->gradient);
    owners.gradients += memory.add(parameter.grad());
  }
}

void add(const PreparedOptimizer& optimizer, DistinctMemory& memory, Owners& owners) {
  for (const auto& parameter : optimizer.parameters())
    for_each_state_tensor(optimizer.inner(), parameter,
                          [&](const at::Tensor& state) { owners.states += memory.add(state); });
}

std::string size(int64_t bytes) { return size_text(static_cast<uint64_t>(bytes)); }

/// "; for backward, blocks keep layers.0 3.0 MiB, ...": as measured in their first step, of recomputed models.
std::string blocks_text(const std::vector<std::shared_ptr<PreparedModel>>& models, at::Device device) {
  std::vector<std::string> blocks;
  for (const auto& model : models)
    if (model->recomputed && model->device == device.type())
      for (size_t i = 0; i < model->recomputed->all().size(); ++i)
        if (const auto bytes = model->recomputed->bytes_after_forward(i); bytes > 0)
          blocks.push_back(model->recomputed->all()[i].name + " " + size(bytes));
  return blocks.empty() ? "" : "; for backward, blocks keep " + first_names(blocks);
}

/// The failed call has returned, and its memory is free again, so the rest is measured at the peak.
std::string text_of(const Owners& owners, at::Device device, const device::MemoryUse& use) {
  return formatted(
      "{}: of the {} that tensors on {} took at most, {} are parameters and buffers, {} gradients, {} optimizer state, "
      "{} pools of full parameters and gradients, and up to {} activations and the program's own; {} are reserved, and "
      "{} of the host's memory are pinned",
      kId, size(use.peak), device.str(), size(owners.parameters), size(owners.gradients), size(owners.states),
      size(owners.pools), size(std::max<int64_t>(use.peak - owners.sum(), 0)), size(use.reserved),
      size(device::pinned_bytes(device)));
}

}  // namespace

void add_memory_owners(c10::Error& error, at::Device device, const std::vector<std::shared_ptr<PreparedModel>>& models,
                       const PreparedOptimizers& optimizers) {
  const auto use = device::memory_use(device);
  const std::string_view text = error.what_without_backtrace();
  if (!use || text.find(kId) != text.npos || !is_out_of_memory(std::current_exception())) return;
  DistinctMemory memory(device);
  Owners owners;
  for (const auto& model : models)
    if (model->device == device.type()) add(*model, memory, owners);
  for (const auto& entry : optimizers)
    if (const auto optimizer = entry.lock()) add(*optimizer, memory, owners);
  error.add_context(text_of(owners, device, *use) + blocks_text(models, device));
}

}  // namespace muster::runtime
