#pragma once  // for other rooms

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "muster/format/options.h"

namespace muster {

/// The form to which a file of weights is converted.
enum class WeightForm : std::uint8_t {
  torch,        ///< one file of Python's torch.save
  safetensors,  ///< one safetensors file
  folder,       ///< a folder of safetensors files with an index
  lightning,    ///< one file in the format of Lightning's Trainer in Python
};

/// Options for converting files of weights.
struct ConvertOptions {
  Durability durability = Durability::full;
  bool leave_out = false;                       ///< true: leave out unknown objects and unsupported values instead of
                                                ///< failing; always so for TorchScript archives
  ByteSize max_shard_size = 10'000'000'000;     ///< limit for each file of a folder; a single larger tensor gets a
                                                ///< separate file
  int model = -1;                               ///< index of the model whose weights are converted, for a checkpoint
                                                ///< with several models
  std::string part = {};                        ///< path of the part to convert: names and list positions, joined by
                                                ///< "/"; empty: everything
  std::string strip = {};                       ///< prefix to remove from names, such as "module."
  std::optional<WeightForm> to = std::nullopt;  ///< form to write; if unset, the name of the output determines it
};

}  // namespace muster

namespace muster::format {

/// The result of a conversion.
struct ConvertReport {
  std::string from;  ///< description of the source
  WeightForm to = WeightForm::torch;
  std::vector<std::filesystem::path> files;  ///< written files
  std::size_t tensors = 0;                   ///< number of tensors written; tied ones count once
  std::uint64_t bytes = 0;                   ///< size of their elements in bytes
  std::vector<std::string> left_out;         ///< paths of unconverted values: unknown objects, or values other
                                             ///< than weights
};

/// The name of a form: "torch", "safetensors", "folder", "lightning".
std::string_view name_of(WeightForm form);
/// Throws: UsageError MU230, with the names, for any other word.
WeightForm weight_form(std::string_view name);

/// Converts between torch files (of any readable form), safetensors files, folders of them with an index, and
/// checkpoint folders (read only). From a checkpoint folder, a torch file gets {"model": weights, "optimizer": state in
/// Python's layout}, or the names it was saved with, and safetensors files get the weights of one model; options.part
/// selects any other part. From one that a Trainer wrote, a name with ".ckpt" gets what Lightning's Trainer would save:
/// weights, hyper-parameters, counters and, without schedulers, optimizers' states. From a torch file that holds more
/// than tensors, such as {"model": weights, "optimizer": state, "epoch": 3}, safetensors files get its only state dict.
/// If options.to is not set, the name of `to` determines its form: ".safetensors"; ".pt", ".pth", ".bin" and ".ckpt"
/// for torch; a name without any of these is a folder. An existing file or folder of that name is replaced when the new
/// one is complete. A torch file keeps views and shared memory; safetensors files hold dense tensors under names joined
/// by ".", tied ones once, as save_file writes them. Throws: UsageError MU230 (no form known by the name);
/// CheckpointError MU226, MU229 (what the form cannot hold), and those of reading and writing.
ConvertReport convert(const std::filesystem::path& from, const std::filesystem::path& to,
                      const ConvertOptions& options = {});

}  // namespace muster::format
