#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace muster::graph {

enum class Trait : uint16_t {
  autograd_only = 1 << 0,  ///< its only kernel is one of autograd: an operator of a user
  autocast = 1 << 1,       ///< casts its arguments under autocast, then calls itself
  composite = 1 << 2,      ///< made of other operators above autograd, which are recorded in its place
  /// Its results depend on other processes, or it changes what the recorder cannot follow: it is never replayed.
  keeps_results = 1 << 3,
  opaque = 1 << 4,         ///< takes a dictionary, tuple or object, whose tensors would be held with their graphs
  overwrites = 1 << 5,     ///< replaces what it writes, and does not read it
  random = 1 << 6,         ///< draws from a generator
  sizes_only = 1 << 7,     ///< does not read values, as zeros_like does not
  uninitialized = 1 << 8,  ///< returns memory that nobody has written
  view = 1 << 9,           ///< makes no memory
  workspace = 1 << 10,     ///< results after the first are for its own backward, and not written in full
  zeros = 1 << 11,         ///< returns memory full of zeros, which programs like to fill by a pointer
};

/// What the recorder has to know of an operator. Most of it follows from its schema.
struct OperatorTraits {
  const c10::FunctionSchema* schema = nullptr;  ///< asking the operator's handle for it takes a while
  uint16_t traits = 0;
  int generator = -1;       ///< the argument that is a generator
  int training = -1;        ///< the argument that says whether statistics are written
  uint64_t written = 0;     ///< bit i: writes argument i, by its schema
  uint64_t statistics = 0;  ///< bit i: argument i is a running statistic, written in training whatever the schema says

  bool is(Trait trait) const noexcept { return traits & static_cast<uint16_t>(trait); }
  bool writes(size_t argument) const noexcept { return argument < 64 && (written >> argument & 1); }
  bool is_statistic(size_t argument) const noexcept { return argument < 64 && (statistics >> argument & 1); }
};

/// Thread-safe. The reference is valid as long as this thread runs.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace muster::graph
