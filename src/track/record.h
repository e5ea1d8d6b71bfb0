#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/track/logged_value.h"

namespace muster::track {

/// The values of one call, encoded as bytes for the queue and its file; the bytes begin with their count.
struct Record {
  enum class Kind : uint8_t { artifact, hyperparams, values };

  Kind kind = Kind::values;
  int32_t only = -1;  ///< index of the only tracker that gets them; -1: all
  int64_t step = 0;
  double time = 0;
  std::vector<LoggedValue> values;
};

/// Appends the record to `bytes`. Requires: images and names were checked.
void encode(const Record& head, std::span<const LoggedValue> values, std::string& bytes);

/// Reads records from bytes that contain whole records. Results refer to the bytes and to the reader.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : rest_(bytes) {}

  bool done() const noexcept { return rest_.empty(); }
  /// The next record, valid until the next call.
  const Record& next();

 private:
  template <class T>
  T take();
  std::string_view take_text();
  LoggedValue::Data take_data();
  Histogram take_histogram();

  std::string_view rest_;
  Record record_;
  std::deque<Histogram> histograms_;
};

/// The size in bytes of the whole records at the beginning of `bytes`.
std::size_t whole_records(std::string_view bytes);

}  // namespace muster::track
