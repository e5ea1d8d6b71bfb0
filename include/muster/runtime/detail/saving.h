#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/checkpoint/detail/incompatible_keys.h"
#include "muster/checkpoint/detail/options.h"
#include "muster/runtime/detail/model.h"
#include "muster/runtime/detail/options.h"
#include "muster/runtime/detail/prepare.h"
#include "muster/runtime/detail/state_access.h"

namespace muster::parallel {
struct FullParamsOptions;
}

namespace muster {

class SavedItem;
class State;

/// Removes a hook; a second remove() does nothing.
class RemovableHandle {
 public:
  explicit RemovableHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (auto remove = std::exchange(remove_, {})) remove();
  }

 private:
  std::function<void()> remove_;
};

/// Which entries of a named item are saved: those for which the function returns true.
using SaveFilter = std::map<std::string, std::function<bool(const std::string& name, const State& value)>>;

namespace runtime {

template <class T>
concept Stateful = requires(T& object, const T& constant, const State& state) {
  constant.state_dict();
  object.load_state_dict(state);
};

/// Saves and loads what a runtime prepared. A checkpoint is a folder, or a set of files in project.storage; it appears
/// complete or not at all, and all ranks must see the same one (docs/formats/checkpoint.md). A rank per node checks it.
/// Collective: every function unless it says otherwise, with the same arguments on every rank.
/// Throws: CheckpointError, on all ranks: MU202, MU210 to MU216, MU313 to MU317 for files; MU131, MU208, MU209, MU240
/// for what does not fit. If loading fails, everything in memory is as it was before.
class Saving {
 public:
  using StateHook = std::function<void(State& state, const std::filesystem::path& folder)>;
  /// Writes all that training depends on: models, optimizers, loss scales, schedulers, loaders, random generators, an
  /// unfinished accumulation window, gradients that no step has used, registered objects. A program that loads it
  /// continues as if it had not been interrupted. `folder`: where to write; empty: as options.project says, under the
  /// number after the highest. Returns the folder of the checkpoint. Asynchronous: returns once tensors are copied to
  /// host memory; a later failure is thrown by the next save or wait_for_save(). A number is chosen only when it is
  /// written: then the folder of all numbered checkpoints is returned, and wait_for_save() returns that of the new one.
  /// Throws: CheckpointError MU241 (an unknown scheduler); ConfigError MU244 (no folder).
  std::filesystem::path save_state(const std::filesystem::path& folder = {}, const SaveStateOptions& options = {});
  /// Loads the state into the same objects, prepared and registered in the same order. The world size may differ:
  /// loaders continue at the same sample, and the log names what cannot be kept. epochs() continues at the epoch of the
  /// first loader. `folder` empty: the complete checkpoint with the highest number in the project's folder. The main
  /// rank chooses it for all ranks, and the log names those that it passes over. Ranks compare which one each has
  /// opened before anything is loaded.
  /// Throws: CheckpointError MU247 if ranks opened different saves; MU242 for a checkpoint inside an accumulation
  /// window that cannot be continued here; MU584 for gradients of other ranks; ConfigError MU244 if there is no folder
  /// or no checkpoint in it.
  void load_state(const std::filesystem::path& folder = {}, const LoadStateOptions& options = {});
  /// Waits until an asynchronous save is on the disk. Returns its folder; empty if there was none.
  std::filesystem::path wait_for_save();

  /// Registers objects with state_dict() and load_state_dict(), to be saved with the rest. They must outlive the
  /// runtime's saves. If ranks hold different states, each rank gets its own back. Not collective.
  /// Requires: the program includes muster/tree/state.h, which says what an object needs.
  template <Stateful... T>
  void register_for_checkpointing(T&... objects) {
    (keep_object([&objects] { return objects.state_dict(); },
                 [&objects](const State& state) { objects.load_state_dict(state); }),
     ...);
  }
  /// The hook is called before a checkpoint is written, with the state to be written; on rank 0 it is complete. It may
  /// add and change entries. An entry of "models" or "optimizers" that it empties is not saved. Not collective.
  RemovableHandle register_save_state_pre_hook(StateHook hook);
  /// The hook gets the state that was read, before it is loaded; entries that it empties are not. Not collective.
  RemovableHandle register_load_state_pre_hook(StateHook hook);

  /// Writes these items under their names, as Fabric does. `filter`: see SaveFilter. Requires, as load(): the program
  /// includes fabric.h or muster/runtime/extras.h. Throws: ConfigError MU246 for a filter of a name that is not saved.
  void save(const std::filesystem::path& folder, const std::vector<SavedItem>& items, const SaveFilter& filter = {});
  /// Loads items by name and returns the entries of the checkpoint that are not among them.
  /// Throws: CheckpointError MU209 for a name that the checkpoint does not have, if strict; MU247 if ranks opened
  /// different saves.
  State load(const std::filesystem::path& folder, const std::vector<SavedItem>& items,
             const LoadStateOptions& options = {});
  State load(const std::filesystem::path& folder);
  /// As load_model(), under Fabric's name.
  template <class M>
  void load_raw(const std::filesystem::path& path, const Model<M>& model, const LoadStateOptions& options = {}) const {
    load_model(model, path, {.strict = options.strict});
  }

  /// Loads bare weights into a model, prepared or not: what save_model wrote, a safetensors file, index or folder, a
  /// file of torch.save, torch::save or torch.jit.save, or a folder with pytorch_model.bin or its index. Like Python's
  /// load_state_dict, it converts values to the dtypes of the model. If a file holds one dictionary of tensors among
  /// other things, it loads that one; the log says so, and names what is left out, objects of unknown classes too.
  /// Optimizers, their states and averages of the model stay as they are.
  /// Returns the names that only the model or only the file has: none if strict. See LoadStateDictOptions.
  /// Throws, on all ranks, with the model unchanged: CheckpointError MU200, MU201, MU205, MU207, MU225, MU226 for the
  /// files; MU228 for names that only one of them has, if strict, and for values that do not fit, all listed; MU250 if
  /// ranks read different weights.
  template <class M>
  IncompatibleKeys load_model(const Model<M>& model, const std::filesystem::path& path,
                              const LoadStateDictOptions& options = {}) const {
    return load_weights(model.ptr(), path, options);
  }
  template <ModuleLike M>
  IncompatibleKeys load_model(M&& module, const std::filesystem::path& path,
                              const LoadStateDictOptions& options = {}) const {
    return load_weights(module_pointer(std::forward<M>(module)), path, options);
  }

  /// Writes the model's weights as safetensors into `folder`: one file, or several and an index. Collective.
  template <class M>
  void save_model(const Model<M>& model, const std::filesystem::path& folder,
                  const SaveWeightsOptions& options = {}) const {
    write_model(*model.prepared(), folder, options);
  }
  /// Runs `f` while the module has its full parameters, to be read or changed, on all ranks or the first.
  /// If nothing is sharded, it just calls `f`. Collective: if parameters are sharded, outside of forward and backward.
  /// Throws: what `f` throws; as ShardedModel::summon_full_params().
  template <class M, std::invocable<> F>
  void summon_full_params(const Model<M>& model, F&& f,
                          const extra_t<M, parallel::FullParamsOptions>& options = {}) const;
  template <class M>
  auto unwrap_model(const Model<M>& model) const {
    return model.ptr();
  }

 protected:
  explicit Saving(std::shared_ptr<RuntimeState> state) : state_(std::move(state)) {}

 private:
  void keep_object(const std::function<State()>& save, const std::function<void(const State&)>& load);
  IncompatibleKeys load_weights(const std::shared_ptr<torch::nn::Module>& module, const std::filesystem::path& path,
                                const LoadStateDictOptions& options) const;
  static void with_full_params(const PreparedModel& model, const std::function<void()>& f,
                               const parallel::FullParamsOptions& options);
  void write_model(const PreparedModel& model, const std::filesystem::path& folder,
                   const SaveWeightsOptions& options) const;

  std::shared_ptr<RuntimeState> state_;
};

}  // namespace runtime
}  // namespace muster
