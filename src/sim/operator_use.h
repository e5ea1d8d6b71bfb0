#pragma once

#include <vector>

#include <ATen/core/function_schema.h>

namespace muster::sim {

/// What a call of an operator does, by its schema.
struct OperatorUse {
  std::vector<char> writes = {};  ///< by argument
  bool makes = false;             ///< results that are no arguments
  bool resizes = false;           ///< it has `out` arguments
  bool reads = false;             ///< tensors
  bool is_view = false;
  bool waits = false;  ///< the host must know values: for the shapes of results, or because a result is no tensor
  int generator = -1;  ///< index of the argument
};

OperatorUse read_schema(const c10::FunctionSchema& schema);
/// The same, remembered.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

}  // namespace muster::sim
