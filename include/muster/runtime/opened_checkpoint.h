#pragma once

#include <chrono>
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

/// A checkpoint of save_state() that is loaded in phases (models, optimizers, progress), for programs that prepare some
/// objects only after others are loaded. The constructor opens and checks it, and calls the load_state hooks.
/// Copies share it. Thread safety: one thread at a time. Requires: the runtime outlives it.
/// Throws: as load_state(), from each phase for what it loads. A phase that fails changes nothing; earlier phases stay
/// loaded.
class OpenedCheckpoint {
 public:
  /// `folder`: as in load_state(). Collective.
  explicit OpenedCheckpoint(const Runtime& runtime, const std::filesystem::path& folder = {},
                            const LoadStateOptions& options = {});

  const std::filesystem::path& folder() const;
  /// Loads weights and the state of communication hooks. Requires: models are prepared. Collective.
  void load_models();
  /// Loads optimizers, loss scales and schedulers. Requires: optimizers and schedulers are prepared. Collective.
  void load_optimizers();
  /// Loads loaders, registered objects, the accumulation window with its gradients, random generators, and the epoch of
  /// epochs(). `fewer_loaders`: allows that only the first of the checkpoint's loaders are prepared. Requires:
  /// load_optimizers() was called, if the checkpoint has gradients in an open window. Collective.
  void load_progress(bool fewer_loaders = false);

  /// The entries of the state that all ranks share, without the sharded weights, including entries that hooks of
  /// save_state() added.
  const State& shared() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// One entry of the state that all ranks share, from a checkpoint of save_state() or save(); nullopt if there is no
/// entry of this name. Reads no weights, and checks only names, sizes and indexes. Not collective.
/// Throws: CheckpointError as Checkpoint.
std::optional<State> checkpoint_entry(const Runtime& runtime, const std::filesystem::path& folder,
                                      const std::string& name);

namespace runtime {
/// The full weights of one model in a checkpoint of save_state(), by name; shards are joined. Not collective.
/// Throws: CheckpointError as Checkpoint; MU209 for a checkpoint without such a model.
State checkpoint_weights(const std::filesystem::path& folder, std::size_t model = 0);
/// The weights in a file or a folder of bare weights that load_model() would load into this module, without other
/// contents. Throws: CheckpointError, as load_model().
State bare_weights(const std::filesystem::path& path, const torch::nn::Module& module);

/// The newest complete checkpoint in the project's folder or storage, which it names in the log; nullopt if there is
/// none.
/// Collective. Throws: ConfigError (MU244) if the options name no folder.
std::optional<std::filesystem::path> checkpoint_to_resume(const Runtime& runtime);

/// The time when the job began, if `muster run` has restarted its ranks since; nullopt if not. Not collective.
std::optional<std::chrono::system_clock::time_point> start_of_restarted_job(const Runtime& runtime);

}  // namespace runtime

/// Loads the newest complete checkpoint in the project's folder, as load_state() does, if there is one. Returns whether
/// it loaded one: false at the first start of a program. So one command both starts and continues a job, by hand or by
/// `muster run --max-restarts`.
/// Requires: the objects to load are prepared and registered.
/// Collective.
/// Throws: ConfigError (MU244) if the options name no folder; as load_state().
bool resume(Runtime& runtime, const LoadStateOptions& options = {});

}  // namespace muster
