#pragma once

#include <vector>

#include "comm/operation.h"

namespace muster::comm {

/// Converts an operation on a dtype that a device's backend lacks into one that the backend can run.
class ConvertedOperation {
 public:
  /// Whether the backend lacks the operation's dtype.
  static bool is_needed(const Operation& operation, const std::vector<c10::ScalarType>& without);

  /// Throws: ConfigError (MU564) for a reduction of a dtype that cannot be converted to another one.
  static void require_way(const Operation& operation);
  /// Converts the tensors: to bytes if nothing is reduced; otherwise int16 to int32 in separate memory, and bool to
  /// uint8. Copies are made on the current stream.
  /// Requires: require_way().
  explicit ConvertedOperation(const Operation& operation);
  const Operation& converted() const noexcept { return converted_; }
  /// Copies the values into the operation's own tensors, on the current stream, which has waited for the converted
  /// operation.
  void finish(const Operation& operation, bool has_result) const;

 private:
  Operation converted_;
};

}  // namespace muster::comm
