#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "muster/track/logged_value.h"

namespace muster::track {

/// The shortest text that reads back as the same number; "nan", "inf" and "-inf".
std::string number_text(double value);
inline std::string number_text(int64_t value) { return std::to_string(value); }

double seconds_since_1970();

/// Whether the value is a number, a boolean or text.
inline bool is_plain(const LoggedValue& value) noexcept { return value.data.index() < 4; }

/// Combines functions for the alternatives of LoggedValue::Data in one object.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// The text of a number, a boolean or a text; empty for other values. `number` writes a double, `text` a text.
template <class Number, class Text>
std::string plain_text(const LoggedValue& value, Number&& number, Text&& text, std::string_view yes = "true",
                       std::string_view no = "false") {
  return std::visit(Overloaded{[&](double plain) { return std::string(number(plain)); },
                               [](int64_t plain) { return number_text(plain); },
                               [&](bool flag) { return std::string(flag ? yes : no); },
                               [&](std::string_view words) { return std::string(text(words)); },
                               [](const auto&) { return std::string(); }},
                    value.data);
}

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

/// Records on their way from the threads that log to the one that writes, in order. Beyond `capacity` bytes they wait
/// in a file, which exists only as long as it is needed. Thread safety: push(), close() and wait_until_written() from
/// any thread; the others from one.
class RecordQueue {
 public:
  RecordQueue(std::size_t capacity, std::filesystem::path spill) : capacity_(capacity), spill_path_(std::move(spill)) {}
  ~RecordQueue();

  /// Returns false if the queue is closed. A record that fits neither in memory nor in the file is dropped and counted.
  bool push(std::string_view record);
  /// Waits for records, and then up to `gather` for more of them; replaces `bytes` by whole records. Returns false once
  /// the queue is closed and empty.
  bool take(std::string& bytes, std::chrono::milliseconds gather);
  /// Notes that the records that were taken have been written.
  void mark_written();
  bool wait_until_written(std::chrono::milliseconds timeout);
  void close();
  int64_t dropped() const noexcept { return dropped_; }

 private:
  void spill(std::string_view record) MUSTER_REQUIRES(mutex_);
  bool has_spilled() const noexcept MUSTER_REQUIRES(mutex_) { return spill_read_ < spill_written_; }
  /// Unlocks while it reads, which clang cannot follow: the lock is the caller's.
  void read_spilled(std::string& bytes, base::Lock& lock) MUSTER_REQUIRES(mutex_) MUSTER_NO_THREAD_SAFETY_ANALYSIS;
  void end_spill() MUSTER_REQUIRES(mutex_);

  const std::size_t capacity_;
  const std::filesystem::path spill_path_;
  base::Mutex mutex_;
  base::Condition changed_, written_;
  std::string memory_ MUSTER_GUARDED_BY(mutex_);
  Descriptor spill_file_ MUSTER_GUARDED_BY(mutex_);
  uint64_t spill_read_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t spill_written_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  bool hurry_ MUSTER_GUARDED_BY(mutex_) = false;  // true: do not gather, since a caller waits or memory fills up
  uint64_t pushed_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t taken_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> dropped_{0};
};

}  // namespace muster::track
