#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "muster/runtime/detail/state_access.h"
#include "muster/runtime/options.h"
#include "muster/tree/state.h"

namespace torch::nn {
class Module;
}

namespace muster {

/// A checkpoint of save_state() that is loaded in phases, for programs that prepare some objects only after others are
/// loaded: models; optimizers; progress. It is opened and checked once, and the load_state hooks are called then.
/// Thread safety: one thread at a time. Requires: the runtime lives longer.
/// Throws: as load_state(), from each phase for what it loads. A phase that fails changes nothing; those before it
/// remain.
class OpenedCheckpoint {
 public:
  /// `folder`: as in load_state(). Collective.
  explicit OpenedCheckpoint(const Runtime& runtime, const std::filesystem::path& folder = {},
                            const LoadStateOptions& options = {});
  OpenedCheckpoint(OpenedCheckpoint&&) noexcept;
  OpenedCheckpoint& operator=(OpenedCheckpoint&&) noexcept;
  ~OpenedCheckpoint();

  const std::filesystem::path& folder() const;
  /// Weights, and what communication hooks keep. Requires: models are prepared. Collective.
  void load_models();
  /// Optimizers, loss scales, and schedulers. Requires: as load_models(), of these. Collective.
  void load_optimizers();
  /// Loaders, registered objects, the accumulation window with its gradients, random generators, and the epoch of
  /// epochs(). `fewer_loaders`: only the first of the checkpoint's loaders may be prepared. Requires: load_optimizers()
  /// was called, if gradients wait in an open window. Collective.
  void load_progress(bool fewer_loaders = false);

  /// Each entry of the state that is the same on all ranks, without the sharded weights; what a hook of save_state()
  /// added is among them.
  const State& shared() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One entry of the state that all ranks share, of a checkpoint of save_state() or save(); nullopt if it has none of
/// this name. Reads no weights, and checks names, sizes and indexes alone. Not collective.
/// Throws: CheckpointError as Checkpoint.
std::optional<State> checkpoint_entry(const Runtime& runtime, const std::filesystem::path& folder,
                                      const std::string& name);

namespace runtime {
/// The full weights of one model of a checkpoint of save_state(), by name, sharded ones joined. Not collective.
/// Throws: CheckpointError as Checkpoint; MU209 for a checkpoint without such a model.
State checkpoint_weights(const std::filesystem::path& folder, std::size_t model = 0);
/// The weights of a file or a folder of bare weights, as load_model() takes them for this module: what is beside them
/// is left out. Throws: CheckpointError, as load_model().
State bare_weights(const std::filesystem::path& path, const torch::nn::Module& module);
}  // namespace runtime

}  // namespace muster
