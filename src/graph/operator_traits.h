#pragma once

#include <cstdint>

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

namespace c10 {
class OperatorHandle;
}

namespace muster::graph {

/// What the recorder has to know of an operator. Most of it follows from its schema.
struct OperatorTraits {
  bool composite = false;     ///< made of other operators above autograd, which are recorded in its place
  bool has_autocast = false;  ///< casts its arguments under autocast, then calls itself
  bool view = false;          ///< makes no memory
  bool needs_data = true;     ///< off: looks at sizes only, as zeros_like does
  bool random = false;
  bool autograd_only = false;  ///< its only kernel is one of autograd: an operator of a user
  bool uninitialized = false;  ///< returns memory that nobody has written
  bool workspace = false;      ///< results after the first are for its own backward, and not written in full
  bool zeros = false;          ///< returns memory full of zeros, which programs like to fill by a pointer
  bool overwrites = false;     ///< replaces what it writes, and does not read it
  /// Its results depend on other processes, or it changes what the recorder cannot follow: it is never replayed.
  bool keeps_results = false;
  int generator = -1;       ///< the argument that is a generator
  uint64_t written = 0;     ///< bit i: writes argument i, by its schema
  uint64_t statistics = 0;  ///< bit i: argument i is a running statistic, written in training whatever the schema says
  int training = -1;        ///< the argument that says whether statistics are written
};

/// Thread-safe. The reference is valid as long as this thread runs.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace muster::graph
