#include "muster/runtime/loader_preparation.h"

#include "muster/base/error.h"
#include "muster/data/shard_spec.h"
#include "runtime_state.h"

namespace muster {

std::shared_ptr<const data::ShardSpec> runtime::shard_of(RuntimeState& state, const data::LoaderState& loader,
                                                         const PrepareLoaderOptions& options) {
  if (options.filler_batches && options.even_batches.value_or(false))
    throw ConfigError("MU432",
                      "a loader is to be prepared with even_batches, which repeat samples, and with filler_batches, "
                      "which are there instead of repeated samples: set one of the two");
  auto shard = state.prepare_loader(loader);
  if (options.even_batches) shard.even_batches = options.even_batches;
  if (!options.move_to_device) shard.device = at::kCPU;
  shard.filler_batches = options.filler_batches;
  shard.in_order = options.in_order;
  return std::make_shared<const data::ShardSpec>(shard);
}

std::shared_ptr<data::LoaderState> prepare_loader(const Runtime& runtime, const data::LoaderState& loader,
                                                  const PrepareLoaderOptions& options) {
  auto prepared = loader.distributed(*runtime::shard_of(runtime::state_of(runtime), loader, options));
  runtime::keep_loader(runtime::state_of(runtime), prepared, options.place);
  return prepared;
}

}  // namespace muster
