#pragma once

#include <vector>

#include "comm/operation.h"

namespace muster::comm {

/// An operation on a dtype that a backend of a device lacks, as one that it can run.
class ConvertedOperation {
 public:
  /// Whether the backend lacks the operation's dtype.
  static bool is_needed(const Operation& operation, const std::vector<c10::ScalarType>& without);

  /// Throws: ConfigError (MU564) for a reduction of a dtype that cannot travel as another one.
  static void require_way(const Operation& operation);
  /// What travels instead: bytes where nothing is reduced; of int16, int32, in memory of its own; of bool, uint8.
  /// Copies are made on the current stream.
  /// Requires: require_way().
  explicit ConvertedOperation(const Operation& operation);
  const Operation& converted() const noexcept { return converted_; }
  /// Gives the operation's own tensors the values, on the current stream, which has waited for the converted operation.
  void finish(const Operation& operation, bool has_result) const;

 private:
  Operation converted_;
};

}  // namespace muster::comm
