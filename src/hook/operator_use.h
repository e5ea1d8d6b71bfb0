#pragma once

#include <cstdint>

#include "interceptor.h"
#include "watched_storage.h"

namespace muster::hook {

/// Lets an override that marks one of the operator's arguments run the operator.
void take_over(Call& call);

inline constexpr Interceptor kOperatorOverride{.name = "operator override",
                                               .priority = Priority::operator_override,
                                               .takes = nullptr,
                                               .run = take_over,
                                               .disabled_by = kStorageInterceptorsSwitch};

}  // namespace muster::hook

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
