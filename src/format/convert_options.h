#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
