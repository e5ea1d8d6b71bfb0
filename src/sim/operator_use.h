#pragma once

#include <vector>

#include <ATen/core/function_schema.h>

namespace muster::sim {

/// What a call of an operator does, derived from its schema.
struct OperatorUse {
  std::vector<char> writes = {};  ///< whether each argument is written
  bool makes = false;             ///< whether it makes results that are not arguments
  bool resizes = false;           ///< whether it has `out` arguments
  bool reads = false;             ///< whether it reads tensors
  bool is_view = false;
  bool waits = false;  ///< whether the host must know values: shapes depend on them, or a result is not a tensor
  int generator = -1;  ///< index of the generator argument; -1: none
};

OperatorUse read_schema(const c10::FunctionSchema& schema);
/// The use of an operator by its schema; computed once and cached.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

}  // namespace muster::sim
