#pragma once

#include <cstdint>
#include <string>

#include "muster/base/error.h"

namespace muster {

/// Thrown when a dataset throws (MU102). The message contains the text of the cause; the cause itself is nested
/// (std::rethrow_if_nested).
class DatasetError : public Error {
 public:
  DatasetError(int64_t index, const std::string& message) : Error("MU102", message), index_(index) {}
  /// The index of the sample that failed; that of the batch's first sample if the dataset makes whole batches.
  int64_t index() const noexcept { return index_; }

 private:
  int64_t index_;
};

}  // namespace muster
