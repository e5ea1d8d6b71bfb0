#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

namespace muster::track {

/// Records on their way from the threads that log to the one that writes, in order. Beyond `capacity` bytes they wait
/// in a file, which exists only as long as it is needed. Thread safety: push(), close() and wait_until_written() from
/// any thread; the others from one.
class RecordQueue {
 public:
  RecordQueue(std::size_t capacity, std::filesystem::path spill) : capacity_(capacity), spill_path_(std::move(spill)) {}
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;
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
  void spill(std::string_view record);
  bool has_spilled() const noexcept { return spill_read_ < spill_written_; }
  void read_spilled(std::string& bytes, std::unique_lock<std::mutex>& lock);
  void end_spill();

  const std::size_t capacity_;
  const std::filesystem::path spill_path_;
  std::mutex mutex_;
  std::condition_variable changed_, written_;
  std::string memory_;
  int spill_file_ = -1;
  uint64_t spill_read_ = 0;
  uint64_t spill_written_ = 0;
  bool closed_ = false;
  bool hurry_ = false;  // true: do not gather, since a caller waits or memory fills up
  uint64_t pushed_ = 0;
  uint64_t taken_ = 0;
  uint64_t finished_ = 0;
  std::atomic<int64_t> dropped_{0};
};

}  // namespace muster::track
