#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/format/options.h"

namespace muster {

/// Options for writing a folder of weights.
struct SaveWeightsOptions {
  Durability durability = Durability::full;
  ByteSize max_shard_size = 10'000'000'000;  ///< Limit per file, or "10GB"; a larger tensor gets its own file.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< Stored in every file's header.
};

/// Options for loading a state into a module.
struct LoadStateDictOptions {
  std::string prefix = {};  ///< Prefix of the state's names, such as "module."; names without it are unexpected.
  bool strict = true;       ///< A name that only one side has is an error.
};

/// The names that loading did not match. Both lists are empty if strict.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     ///< Destinations for which the files have no value.
  std::vector<std::string> unexpected_keys;  ///< Tensors of the files without a destination.
};

class CheckpointStorage;

/// Options for writing one file.
struct SaveFileOptions {
  Durability durability = Durability::full;
  std::map<std::string, std::string> metadata = {};  ///< Free text, stored in the file's header.
};

/// Options for reading into new tensors.
struct LoadFileOptions {
  bool map = true;  ///< Share the kernel's memory of the file (copy-on-write, page by page).
};

/// Options for reading into existing tensors.
struct LoadIntoOptions {
  bool strict = true;  ///< A name that only one side has is an error.
};

/// Options for writing a checkpoint.
struct WriteCheckpointOptions {
  Durability durability = Durability::full;  ///< Durability of a folder; a storage decides for itself.
  bool numbered = false;  ///< The given folder contains numbered checkpoints; the new one follows the highest number.
  std::shared_ptr<CheckpointStorage> storage = {};  ///< Where to write; unset: folders that all ranks see.
  int total_limit = 0;  ///< If numbered: how many to keep; 0 keeps all. The lowest are removed once the new one is
                        ///< complete; other files are never removed.
  friend bool operator==(const WriteCheckpointOptions&, const WriteCheckpointOptions&) = default;
};

/// How much of a checkpoint is checked when it is opened.
enum class CheckpointCheck : std::uint8_t {
  everything,  ///< All bytes of all files, so that only a failing disk can cause errors afterwards.
  as_read,     ///< All names, sizes and indexes; blocks of values when they are read. For ranks that each read a part.
  share,       ///< All names, sizes and indexes, and this rank's share of all bytes. For ranks that open it together:
               ///< each continues when all have passed.
  layout,      ///< All names, sizes and indexes; values are not checked. For a checkpoint that was checked a moment
               ///< ago.
};

/// Options for reading a checkpoint.
struct ReadCheckpointOptions {
  CheckpointCheck check = CheckpointCheck::everything;
  bool map = true;  ///< Share the kernel's memory of the files (copy-on-write, page by page). Not used with a storage.
  int part = 0;     ///< With CheckpointCheck::share: index of the share, from 0 to parts - 1.
  int parts = 1;    ///< With CheckpointCheck::share: number of shares. Each block of the files is in exactly one.
  std::shared_ptr<CheckpointStorage> storage = {};  ///< Where the checkpoint is; unset: in a folder.
};

/// Options for reading a torch.save file.
struct LoadPythonOptions {
  bool leave_out = false;  ///< Leave out objects that are not understood, with a warning, instead of failing.
  bool map = true;         ///< Share the kernel's memory of the file (copy-on-write, page by page).
  bool verify = false;     ///< Compare the checksums of all tensors, which Python does not. Reads the whole file.
};

/// Options for writing a torch.save file.
struct SavePythonOptions {
  Durability durability = Durability::full;
  bool integer_keys = true;  ///< If all names are decimal integers, they become integers: {"0": ...} is {0: ...} in
                             ///< Python.
  std::set<std::string> tuples = {"betas", "etas", "step_sizes"};  ///< Lists under these names become tuples.
};

}  // namespace muster
