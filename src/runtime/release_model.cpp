#include "runtime/release_model.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "muster/base/error.h"
#include "muster/parallel/managed_model.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {
namespace {

using Values = std::vector<std::pair<std::string, at::Tensor>>;

/// Bypasses storage(), which refuses a tensor without memory.
const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// Replaces shards, and buffers that sharding has converted, by these values.
void put_back(torch::nn::Module& module, const Values& values) {
  const at::NoGradGuard no_grad;
  auto parameters = module.named_parameters();
  auto buffers = module.named_buffers();
  for (const auto& [name, value] : values) {
    auto* parameter = parameters.find(name);
    auto* tensor = parameter ? parameter : buffers.find(name);
    if (!tensor || storage_of(value) == storage_of(*tensor)) continue;
    tensor->set_data(value);
    if (parameter) tensor->mutable_grad().reset();
  }
}

}  // namespace

void release_model(Model<torch::nn::Module>& model) {
  const auto module = model.ptr();
  const std::weak_ptr<PreparedModel> prepared = model.prepared();
  // Checked before anything changes, so that the module can be released once the other handle is gone.
  if (prepared.use_count() > 1)
    throw UsageError(
        "MU439",
        "a module that another Trainer has prepared cannot be prepared again, since the program still holds "
        "a handle of it, such as a copy of trainer.model(): let go of it first");
  auto& managed = *model.prepared()->managed;
  const auto values = managed.sharded() ? managed.full_state(/*main_only=*/false) : Values();
  model = {};
  put_back(*module, values);
}

}  // namespace muster::runtime
