#pragma once  // for other rooms

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "format/convert_options.h"

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
