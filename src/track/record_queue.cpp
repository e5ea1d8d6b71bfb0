#include "record_queue.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "record.h"

namespace muster::track {
namespace {

constexpr uint64_t kSpillPiece = uint64_t{1} << 20;  // bytes that are read from the file at a time

}  // namespace

RecordQueue::~RecordQueue() { end_spill(); }

bool RecordQueue::push(std::string_view record) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    pushed_ += record.size();
    // Spilled records are older than new ones, so they are written before memory accepts records again.
    if (has_spilled() || (!memory_.empty() && memory_.size() + record.size() > capacity_)) {
      spill(record);
    } else {
      wake = memory_.empty();
      memory_ += record;
      if (memory_.size() > capacity_ / 2) wake = !std::exchange(hurry_, true) || wake;
    }
  }
  if (wake) changed_.notify_all();
  return true;
}

bool RecordQueue::take(std::string& bytes, std::chrono::milliseconds gather) {
  bytes.clear();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || !memory_.empty() || has_spilled(); });
  changed_.wait_for(lock, gather, [&] { return closed_ || hurry_ || has_spilled(); });
  if (!memory_.empty()) {
    bytes.swap(memory_);
    hurry_ = false;
  } else if (has_spilled()) {
    read_spilled(bytes, lock);
  }
  taken_ += bytes.size();
  return !bytes.empty() || has_spilled() || !closed_;
}

void RecordQueue::mark_written() {
  {
    std::lock_guard lock(mutex_);
    finished_ = taken_;
  }
  written_.notify_all();
}

bool RecordQueue::wait_until_written(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto wanted = pushed_;
  hurry_ = hurry_ || finished_ < wanted;
  changed_.notify_all();
  return written_.wait_for(lock, timeout, [&] { return finished_ >= wanted; });
}

void RecordQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void RecordQueue::spill(std::string_view record) {
  if (spill_file_ < 0)
    spill_file_ = ::open(spill_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  std::size_t done = 0;
  while (spill_file_ >= 0 && done < record.size()) {
    const auto count =
        ::pwrite(spill_file_, record.data() + done, record.size() - done, static_cast<off_t>(spill_written_ + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  if (done == record.size()) {
    spill_written_ += done;
    return;
  }
  pushed_ -= record.size();
  if (dropped_++ > 0) return;
  log::warning("MU422", ": values that wait to be logged fill their memory, and ", spill_path_.string(),
               " does not take them (", std::generic_category().message(errno),
               "); they are lost, and training goes on");
}

void RecordQueue::read_spilled(std::string& bytes, std::unique_lock<std::mutex>& lock) {
  const auto begin = spill_read_, end = spill_written_;
  lock.unlock();
  // A record may be longer than a piece.
  for (auto size = std::min(kSpillPiece, end - begin);; size = std::min(size * 2, end - begin)) {
    bytes.resize(size);
    const auto count = ::pread(spill_file_, bytes.data(), size, static_cast<off_t>(begin));
    bytes.resize(count < 0 ? 0 : whole_records({bytes.data(), static_cast<std::size_t>(count)}));
    if (!bytes.empty() || size == end - begin) break;
  }
  lock.lock();
  spill_read_ = bytes.empty() ? end : begin + bytes.size();  // a file that has become unreadable is given up
  if (bytes.empty()) pushed_ -= end - begin;
  if (spill_read_ == spill_written_) end_spill();
}

void RecordQueue::end_spill() {
  if (spill_file_ < 0) return;
  ::close(spill_file_);
  std::error_code ignored;
  std::filesystem::remove(spill_path_, ignored);
  spill_file_ = -1;
  spill_read_ = spill_written_ = 0;
}

}  // namespace muster::track
