#pragma once

#include <cstdint>
#include <map>
#include <set>
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

/// How a checkpoint is written.
struct WriteCheckpointOptions {
  Durability durability = Durability::full;
  bool numbered = false;  ///< The folder given holds checkpoints that are numbered; the new one follows the highest.
  int total_limit = 0;    ///< If numbered: how many to keep. The lowest are removed once the new one is complete, and nothing that is none of ours; 0 keeps all.
  friend bool operator==(const WriteCheckpointOptions&, const WriteCheckpointOptions&) = default;
};

/// How much of a checkpoint is checked when it is opened.
enum class CheckpointCheck : std::uint8_t {
  everything,  ///< All bytes of all files, so that nothing can fail afterwards but the medium.
  as_read,     ///< All names, sizes and indexes; blocks of values when they are read. For ranks that each read a part.
  share,       ///< All names, sizes and indexes, and this rank's share of all bytes. For ranks that open it together: each goes on when all have passed.
  layout,      ///< All names, sizes and indexes; values are taken as they are. For what was checked a moment ago.
};

/// How a checkpoint is read.
struct ReadCheckpointOptions {
  CheckpointCheck check = CheckpointCheck::everything;
  bool map = true;  ///< Share the kernel's memory of the files, copied page by page where it is written to.
  int part = 0;     ///< If a share is checked: which one, from 0 to parts - 1.
  int parts = 1;    ///< If a share is checked: how many there are. Each block of the files is in exactly one.
};

/// How a file of Python is read.
struct LoadPythonOptions {
  bool leave_out = false;  ///< Leave out objects that are not understood, with a warning, instead of failing.
  bool map = true;         ///< Share the kernel's memory of the file, copied page by page where it is written to.
  bool verify = false;     ///< Compare the checksums of all tensors, as Python does not. Reads the whole file.
};

/// How a file of Python is written.
struct SavePythonOptions {
  Durability durability = Durability::full;
  bool integer_keys = true;  ///< Names that all are decimal integers become integers: {"0": ...} is {0: ...} in Python.
  std::set<std::string> tuples = {"betas", "etas", "step_sizes"};  ///< Lists under these names become tuples.
};

/// How a state is put into a module.
struct LoadStateDictOptions {
  std::string prefix = {};  ///< What the state's names have in front, such as "module."; names without it are unexpected.
  bool strict = true;  ///< A name that only one side has is an error.
};

}  // namespace muster
