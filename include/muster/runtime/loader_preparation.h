#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "muster/data/data_loader.h"
#include "muster/data/detail/loader_state.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/detail/state_access.h"

namespace muster {

/// How one loader is prepared; overrides the options of the program and of the loader.
struct PrepareLoaderOptions {
  /// Unset: as set in those options.
  std::optional<bool> even_batches = {};
  /// Instead of even batches: a rank that has no batch in the last step gets a whole batch of padding, so that all
  /// ranks run equally many forwards, and no other batch repeats a sample. local_real_samples() is 0 for that batch.
  /// A batch sampler and ready-made batches always give whole batches, so for them the last step is filled up as by
  /// even_batches.
  bool filler_batches = false;
  /// Keep the order of the data, even if the loader's options shuffle. A sampler keeps its own order.
  bool in_order = false;
  /// Off: batches stay in host memory.
  bool move_to_device = true;
  /// Order of the loader's position in checkpoints: lower places come first, equal places in the order of preparation.
  /// nullopt: checkpoints do not contain the position.
  std::optional<int64_t> place = 0;
};

/// Prepares a loader, given by its type-erased state, as Runtime::prepare() does. Collective.
/// Throws: as prepare(); ConfigError (MU432) for even_batches together with filler_batches.
std::shared_ptr<data::LoaderState> prepare_loader(const Runtime& runtime, const data::LoaderState& loader,
                                                  const PrepareLoaderOptions& options = {});
/// Prepares a loader of known batch type.
template <class Batch>
DataLoader<Batch> prepare_loader(const Runtime& runtime, const DataLoader<Batch>& loader,
                                 const PrepareLoaderOptions& options = {}) {
  return DataLoader<Batch>(prepare_loader(runtime, *loader.state(), options));
}

}  // namespace muster
