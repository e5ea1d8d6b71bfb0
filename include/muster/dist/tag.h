#pragma once

#include <cstdint>
#include <string>

namespace muster::dist {

/// Whose call an operation is.
enum class Source : uint8_t { user, library };

/// What an operation is for. It travels with the operation: ranks must agree in all of it as in kind, shape and dtype, and
/// errors name it, so that one rank's message cannot be taken for another one of the same shape.
struct Tag {
  int64_t gradient_step = -1;      ///< the optimizer steps of the model so far, for what is made of its gradients; else -1
  std::string label{};             ///< what the values are; compared whole, shown in part
  int32_t leaf = 0;                ///< which tensor of a value this is, from 0
  int32_t leaves = 1;              ///< how many tensors the value has
  Source source = Source::user;

  bool operator==(const Tag&) const = default;
};

}  // namespace muster::dist
