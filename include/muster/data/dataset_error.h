#pragma once

#include "muster/base/error.h"

#include <cstdint>
#include <string>

namespace muster {

/// A dataset that threw (MU102). The message keeps the cause's text; the cause itself is nested (std::rethrow_if_nested).
class DatasetError : public Error {
 public:
  DatasetError(int64_t index, const std::string& message) : Error("MU102", message), index_(index) {}
  /// The sample that failed; the first of its batch if the dataset makes whole batches.
  int64_t index() const noexcept { return index_; }

 private:
  int64_t index_;
};

}  // namespace muster
