#pragma once

#include <cstdint>

namespace c10 {
struct FunctionSchema;
}

namespace muster::hook {

/// What an operator does with the bytes of its arguments; a function of its schema.
struct OperatorUse {
  bool needs_data = true;
  bool view = false;
  uint64_t written = 0;  // bit i: argument i
};

/// Thread-safe; the reference is valid as long as this thread runs.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

}  // namespace muster::hook
