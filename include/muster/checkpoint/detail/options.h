#pragma once

#include <map>
#include <string>

#include "muster/format/detail/options.h"

namespace muster {

/// Options for writing a folder of weights.
struct SaveWeightsOptions {
  Durability durability = Durability::full;
  ByteSize max_shard_size = 10'000'000'000;  ///< Limit per file, or "10GB"; a larger tensor gets a file of its own.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< Stored in every file's header.
};

/// Options for loading a state into a module.
struct LoadStateDictOptions {
  std::string prefix = {};  ///< Prefix of the state's names, such as "module."; names without it are unexpected.
  bool strict = true;       ///< A name that only one side has is an error.
};

}  // namespace muster
