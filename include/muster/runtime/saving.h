#pragma once

#include "muster/checkpoint/options.h"
#include "muster/checkpoint/weights.h"
#include "muster/runtime/gathering.h"
#include "muster/runtime/options.h"
#include "muster/runtime/prepare.h"
#include "muster/runtime/saved_item.h"
#include "muster/tree/state.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster {

/// Takes a hook away again.
class HookHandle {
 public:
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  /// A second call does nothing.
  void remove() {
    if (auto remove = std::exchange(remove_, {})) remove();
  }

 private:
  std::function<void()> remove_;
};

/// Which entries of a named item are saved: those for which it returns true.
using SaveFilter = std::map<std::string, std::function<bool(const std::string& name, const State& value)>>;

namespace runtime {

/// Saves and takes back what a runtime prepared. A checkpoint is a folder that appears complete or not at all; see
/// docs/formats/checkpoint.md. All ranks must see the same folder, and those of a node share the check of its bytes.
/// Collective: all of it but what says otherwise, with the same arguments on every rank.
/// Throws: CheckpointError, on all ranks: MU202, MU210 to MU216 of files, MU131, MU208, MU209, MU240 of what does not
/// fit. Where loading fails, everything in memory is as it was before.
class Saving : public Gathering {
 public:
  /// Writes all that the job's course depends on: models, optimizers, loss scales, schedulers, loaders, random generators, an
  /// unfinished accumulation window, registered objects. The program that loads it goes on as if it had not been interrupted.
  /// `folder`: where; empty: options.project says, and the checkpoint gets the number after the highest. Returns where it is.
  /// Asynchronous: returns once tensors are copied to host memory; what fails later is thrown by the next save or wait_for_save().
  /// Throws: CheckpointError MU241 for a scheduler that cannot be saved; ConfigError MU244 where no folder is said.
  std::filesystem::path save_state(const std::filesystem::path& folder = {}, const SaveStateOptions& options = {});
  /// Takes it back, into the same things, prepared and registered in the same order. Another number of ranks is fine: loaders go on
  /// at the same sample; what cannot be kept is said in the log. epochs() goes on where the first loader stands.
  /// `folder` empty: the whole checkpoint with the highest number in the project's folder, which the main rank chooses for all; what it
  /// passes over is said in the log. Ranks compare the save they have opened before anything is loaded.
  /// Throws: CheckpointError MU247 if ranks opened different saves; MU242 inside a window that only that number of ranks can finish; ConfigError MU244.
  void load_state(const std::filesystem::path& folder = {}, const LoadStateOptions& options = {});
  /// Waits until an asynchronous save is on the disk. Returns where; empty if there was none.
  std::filesystem::path wait_for_save();

  /// Objects with save_state() and load_state() that are saved with the rest. They must outlive the runtime's saves. If ranks hold
  /// different states, each gets its own back. Not collective.
  template <Stateful... T>
  void register_for_checkpointing(T&... objects) {
    (keep_object(SavedItem({}, objects)), ...);
  }
  /// Called before a checkpoint is written, with what will be, on rank 0 as it is written; it may add and change entries. An entry
  /// of "models" or "optimizers" that it empties is not saved. Not collective.
  HookHandle register_save_state_pre_hook(std::function<void(State& state, const std::filesystem::path& folder)> hook);
  /// Called with what was read before any of it is loaded; an entry of "models" or "optimizers" that it empties is not loaded.
  /// Not collective.
  HookHandle register_load_state_pre_hook(std::function<void(State& state, const std::filesystem::path& folder)> hook);

  /// Writes these things under their names; Fabric's way. `filter`: see SaveFilter.
  /// Throws: ConfigError MU246 for a filter of a name that is not saved.
  void save(const std::filesystem::path& folder, const std::vector<SavedItem>& items, const SaveFilter& filter = {});
  /// Takes things back by name and returns what nobody asked for.
  /// Throws: CheckpointError MU209 for a name that the checkpoint has not, if strict; MU247 if ranks opened different saves.
  State load(const std::filesystem::path& folder, const std::vector<SavedItem>& items = {}, const LoadStateOptions& options = {});
  /// As load_model; Fabric's way.
  template <class M>
  void load_raw(const std::filesystem::path& path, const Model<M>& model, const LoadStateOptions& options = {}) const {
    load_model(model, path, {.strict = options.strict});
  }

  /// Loads bare weights into a model, prepared or not: what save_model wrote, a safetensors file, index or folder, or a file of torch.save
  /// or torch::save. As Python's load_state_dict, it converts values to the dtypes of the model. Of a file with one dictionary of
  /// tensors among other things it takes that, and says so. Optimizers, their states and averages of the model stay as they are.
  /// Returns what only one side has: nothing if strict. See LoadStateDictOptions.
  /// Throws, on all ranks, with the model unchanged: CheckpointError MU200, MU201, MU205, MU207, MU225, MU226 of the files; MU228 for names
  /// that only one side has, if strict, and for values that do not fit, all listed; MU250 if ranks read different weights.
  template <class M>
  LoadReport load_model(const Model<M>& model, const std::filesystem::path& path, const LoadStateDictOptions& options = {}) const {
    return load_weights(model.ptr(), path, options);
  }
  template <AnyModule M>
  LoadReport load_model(M&& module, const std::filesystem::path& path, const LoadStateDictOptions& options = {}) const {
    return load_weights(module_pointer(std::forward<M>(module)), path, options);
  }

 protected:
  using Gathering::Gathering;

  /// Epochs that a loaded checkpoint has behind it, as far as `count` goes; they are not counted again.
  int64_t first_epoch(int64_t count);

 private:
  void keep_object(SavedItem object);
  LoadReport load_weights(const std::shared_ptr<torch::nn::Module>& module, const std::filesystem::path& path, const LoadStateDictOptions& options) const;
};

}  // namespace runtime
}  // namespace muster
