#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/format/options.h"

namespace muster {

/// The form to which a file of weights is converted.
enum class WeightForm : std::uint8_t {
  torch,        ///< One file of Python's torch.save.
  safetensors,  ///< One safetensors file.
  folder,       ///< A folder of safetensors files with an index.
  lightning,    ///< One file as Lightning's Trainer saves in Python.
};

/// Options for converting files of weights.
struct ConvertOptions {
  Durability durability = Durability::full;
  bool leave_out = false;                       ///< Leave out what is not understood, or what the form cannot hold,
                                                ///< instead of failing. Always so for TorchScript archives.
  ByteSize max_shard_size = 10'000'000'000;     ///< Limit for each file of a folder; a single larger tensor gets a
                                                ///< file of its own.
  int model = -1;                               ///< Which model's weights to convert, from a checkpoint with several
                                                ///< models.
  std::string part = {};                        ///< Convert only the part at this path: names and list positions,
                                                ///< joined by "/".
  std::string strip = {};                       ///< Prefix to remove from names, such as "module.".
  std::optional<WeightForm> to = std::nullopt;  ///< The form to write; if unset, the name of the output determines
                                                ///< it.
};

}  // namespace muster
