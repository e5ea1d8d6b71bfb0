#pragma once

#include <cstdint>

namespace c10 {
struct FunctionSchema;
}

namespace muster::hook {

/// What an operator does with the bytes of its arguments; derived from its schema.
struct OperatorUse {
  bool needs_data = true;
  bool view = false;
  uint64_t written = 0;  // bit i: whether argument i is written
};

/// Thread-safe. The reference is valid as long as this thread runs.
const OperatorUse& use_of(const c10::FunctionSchema& schema);

}  // namespace muster::hook
