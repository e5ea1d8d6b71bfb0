#pragma once

#include <cstdint>
#include <string>

namespace muster::comm {

/// Prefixes of the library's own labels. Error messages choose their advice by them.
inline constexpr const char* kGradientsLabel = "gradients of ";
inline constexpr const char* kEvaluationLabel = "evaluation";

/// Who called an operation.
enum class Source : uint8_t { user, library };

/// What an operation is for. The label travels with the operation: ranks must agree on it, as on kind, shape and dtype,
/// and errors show it. Unlike an MPI tag, it does not select messages: a different label is a mismatch (MU050).
struct OperationLabel {
  int64_t gradient_step = -1;  ///< number of optimizer steps of the model so far, for what is computed from its
                               ///< gradients; else -1
  int64_t history_hash = 0;    ///< hash of what every rank must have done before, in order; 0: nothing
  std::string text{};          ///< what the values are; compared in full, shown in part
  int32_t tensor_index = 0;    ///< index of this tensor within a value
  int32_t tensor_count = 1;    ///< how many tensors the value has
  Source source = Source::user;

  bool operator==(const OperationLabel&) const = default;
};

}  // namespace muster::comm
