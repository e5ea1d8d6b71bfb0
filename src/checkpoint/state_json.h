#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "format/json.h"
#include "muster/tree/state.h"

namespace muster::checkpoint {

/// Takes a tensor with its path in the state, and returns the name under which it is stored.
using StoreTensor = std::function<std::string(const std::string& path, const at::Tensor& tensor)>;
/// Returns the tensor that is stored under a name.
using FindTensor = std::function<at::Tensor(const std::string& name)>;

/// A state as JSON, bit-exact; docs/formats/checkpoint.md describes the format. Paths begin with `root`, and their
/// names are joined by "/".
/// Throws: CheckpointError MU203 for a state that is nested too deeply; exceptions of `store`.
format::Json json_of(const State& state, const StoreTensor& store, const std::string& root);

/// Reads the state back. Throws: CheckpointError MU213 with `file` if the JSON is not a state; exceptions of `find`.
State state_of(const format::Json& json, const FindTensor& find, std::string_view file);

/// The text with "%XX" for "%", for bytes that are not UTF-8 and, in paths, for "/". Different texts stay different.
std::string escaped(std::string_view text, bool in_path);

}  // namespace muster::checkpoint
