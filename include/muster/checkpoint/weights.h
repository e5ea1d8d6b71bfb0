#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/checkpoint/options.h"

/// Saves named tensors to safetensors files and loads them. Only the calling rank reads or writes; no other rank takes
/// part.
/// Thread safety: all functions from any thread, also concurrently. Saving reads the tensors' memory while it runs.
namespace torch::nn {
class Module;
}

namespace muster {

/// Tensors with their names, in the order of a module's state.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Contents of a file or a folder of weights.
struct LoadedWeights {
  std::map<std::string, std::string> metadata;  ///< Metadata of all files. Also lists tied tensors that were not
                                                ///< written: see save_file().
  NamedTensors tensors;                         ///< The tensors, sorted by name, on the CPU.

  /// The tensor of that name.
  /// Throws: CheckpointError MU204 for an unknown name.
  const at::Tensor& at(const std::string& name) const;
};

/// Writes one safetensors file, which replaces an earlier one of that name and appears complete or not at all. Tensors
/// that are the same view of the same memory (tied weights) are written once, under the first of their names in
/// alphabetical order; metadata maps each other name to that one unless it is used already. Non-contiguous tensors are
/// written contiguous; tensors on a device are copied to the CPU one at a time.
/// Throws: CheckpointError MU202 (cannot be written), MU203 (a tensor or name the format cannot hold).
/// Collective: none.
void save_file(const NamedTensors& tensors, const std::filesystem::path& path, const SaveFileOptions& options = {});

/// Reads weights into new tensors on the CPU. `path` is a safetensors file, an index, or a folder that save_weights
/// wrote. Mapped tensors may be written to (the file does not change) and keep the mapping alive; tensors that are not
/// aligned to their element size are copied. While a file is mapped, it may be replaced but must not be truncated in
/// place.
/// Throws: CheckpointError MU200 (cannot be read), MU201 (hostile or damaged), MU205 (index and files disagree),
/// MU207 (an element type that LibTorch does not have).
/// Collective: none.
LoadedWeights load_file(const std::filesystem::path& path, const LoadFileOptions& options = {});

/// Reads weights from `path`, as load_file, straight into the memory of `destinations`, which keep dtype, strides and
/// device. A destination without a tensor of its name takes the value to which its name is tied in the metadata, or
/// that of another destination with the same memory. Names, shapes and dtypes are checked before anything is written.
/// Throws: as load_file; CheckpointError MU204 for names that only one side has, if strict, and always for a tensor
/// whose shape or dtype differs, all listed. Collective: none.
IncompatibleKeys load_into(const NamedTensors& destinations, const std::filesystem::path& path,
                           const LoadIntoOptions& options = {});

/// Returns the values of a tensor at the time when they are written.
using ValueOf = std::function<at::Tensor(const at::Tensor&)>;
/// Writes a folder of weights: model.safetensors, or, above the size limit, model-00001-of-0000N.safetensors and so on
/// with model.safetensors.index.json. An earlier set of either kind stays valid until the new one is complete, and is
/// then removed; other files are left alone. Writers of one folder take turns, and the set of the last one stays. The
/// folder is created if needed. Tied tensors are handled as by save_file. Returns the paths of the weight files.
/// With `value_of`, the values of the tensors need not exist yet: it is called for one tensor after another, and
/// returns a tensor of that shape and dtype. Ties are those of the given tensors. Throws: CheckpointError MU202, MU203;
/// MU211 if another writer takes longer than a minute to publish its set. Collective: none.
std::vector<std::filesystem::path> save_weights(const NamedTensors& tensors, const std::filesystem::path& folder,
                                                const SaveWeightsOptions& options = {}, const ValueOf& value_of = {});

/// All defined parameters and buffers of a module and its children, by full name, in the order of Python's state_dict:
/// a module's parameters, its buffers, then its children.
NamedTensors weights_of(const torch::nn::Module& module);

}  // namespace muster
