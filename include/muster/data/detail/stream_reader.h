#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace muster::data {

/// Samples read from a stream but not yet transformed, type-erased.
class Records {
 public:
  virtual ~Records() = default;
  virtual int64_t size() const = 0;
  /// Appends a copy of sample i of `from`, which has the same type.
  virtual void append(const Records& from, int64_t i) = 0;
};

/// Reads a stream, type-erased. Thread safety: one thread at a time.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  virtual std::unique_ptr<Records> new_records() const = 0;
  /// The number of samples in a pass, if the stream reports it.
  virtual std::optional<int64_t> size() const = 0;
  virtual void start(int64_t epoch) = 0;
  /// Appends the next sample; returns false at the end.
  virtual bool read(Records& to) = 0;
  /// Skips up to n samples; returns how many it skipped.
  virtual int64_t skip(int64_t n) = 0;
};

}  // namespace muster::data
