#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "muster/data/data_loader.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/detail/state_access.h"

namespace muster {

/// How one loader is prepared, in place of what the options of the program and of the loader say.
struct PrepareLoaderOptions {
  /// Unset: as both options say.
  std::optional<bool> even_batches = {};
  /// Instead of even batches: a rank that has no batch in the last step gets a whole one without a real sample, so that
  /// all ranks make as many forwards, and no other batch repeats a sample. local_real_samples() is 0 there. Batches of
  /// a batch sampler and ready-made ones are whole already, and filled up by even_batches.
  bool filler_batches = false;
  /// In the order of the data, also where the loader's options shuffle. A sampler keeps its own order.
  bool in_order = false;
  /// Off: batches stay in host memory.
  bool move_to_device = true;
  /// Checkpoints have the positions of loaders of a lower place first, and of one place in the order in which they were
  /// prepared. nullopt: they do not have its position.
  std::optional<int64_t> place = 0;
};

namespace runtime {
/// How prepare_loader() shards a loader. Collective: as prepare_loader().
std::shared_ptr<const data::ShardSpec> shard_of(RuntimeState& state, const data::LoaderState& loader,
                                                const PrepareLoaderOptions& options);
}  // namespace runtime

/// As Runtime::prepare() of a loader, by its state, whatever its batches are. Collective.
/// Throws: as prepare(); ConfigError (MU432) for even_batches together with filler_batches.
std::shared_ptr<data::LoaderState> prepare_loader(const Runtime& runtime, const data::LoaderState& loader,
                                                  const PrepareLoaderOptions& options = {});
/// The same, of a loader of known type.
template <class Batch>
DataLoader<Batch> prepare_loader(const Runtime& runtime, const DataLoader<Batch>& loader,
                                 const PrepareLoaderOptions& options = {}) {
  auto prepared = loader.distributed(*runtime::shard_of(runtime::state_of(runtime), *loader.state(), options));
  runtime::keep_loader(runtime::state_of(runtime), prepared.state(), options.place);
  return prepared;
}

}  // namespace muster
