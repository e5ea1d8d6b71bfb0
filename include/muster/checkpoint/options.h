#pragma once

#include <map>
#include <string>

#include "muster/format/options.h"

namespace muster {

/// How one file is written.
struct SaveFileOptions {
  Durability durability = Durability::full;
  std::map<std::string, std::string> metadata = {};  ///< Free text, kept in the file's header.
};

/// How a folder of weights is written.
struct SaveWeightsOptions {
  Durability durability = Durability::full;
  ByteSize max_shard_size = 10'000'000'000;  ///< Largest file, but for a tensor that is larger alone. "10GB" works too.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< Kept in every file's header.
};

/// How tensors are read into new memory.
struct LoadFileOptions {
  bool map = true;  ///< Share the kernel's memory of the file, copied page by page where it is written to.
};

/// How tensors are read into given ones.
struct LoadIntoOptions {
  bool strict = true;  ///< A name that only one side has is an error.
};

}  // namespace muster
