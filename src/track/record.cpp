#include "record.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

#include "append_file.h"
#include "base/log.h"

namespace muster::track {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // to_chars would write its sign
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

namespace {

using Size = uint64_t;

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& bytes, std::string_view text) {
  put<Size>(bytes, text.size());
  bytes += text;
}

void put_numbers(std::string& bytes, const std::vector<double>& values) {
  put_text(bytes, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

void put_histogram(std::string& bytes, const Histogram& of) {
  put(bytes, of.count);
  put_numbers(bytes, of.counts);
  put_numbers(bytes, of.limits);
  for (const double number : {of.max, of.min, of.sum, of.sum_squares}) put(bytes, number);
}

std::vector<double> numbers(std::string_view bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

void encode(const Record& head, std::span<const LoggedValue> values, std::string& bytes) {
  const auto begin = bytes.size();
  put<Size>(bytes, 0);
  put(bytes, head.kind);
  put(bytes, head.only);
  put(bytes, head.step);
  put(bytes, head.time);
  put<Size>(bytes, values.size());
  for (const auto& value : values) {
    put_text(bytes, value.name);
    put(bytes, static_cast<uint8_t>(value.data.index()));
    std::visit(Overloaded{[&](std::string_view text) { put_text(bytes, text); },
                          [&](const Histogram* histogram) { put_histogram(bytes, *histogram); },
                          [&](const PngImage& image) {
                            put_text(bytes, {reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size()});
                          },
                          [&](auto plain) { put(bytes, plain); }},
               value.data);
  }
  const Size size = bytes.size() - begin;
  std::memcpy(bytes.data() + begin, &size, sizeof size);
}

template <class T>
T RecordReader::take() {
  T value;
  std::memcpy(&value, rest_.data(), sizeof value);
  rest_.remove_prefix(sizeof value);
  return value;
}

std::string_view RecordReader::take_text() {
  const auto size = take<Size>();
  const auto text = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return text;
}

Histogram RecordReader::take_histogram() {
  Histogram of;
  of.count = take<int64_t>();
  of.counts = numbers(take_text());
  of.limits = numbers(take_text());
  for (double* number : {&of.max, &of.min, &of.sum, &of.sum_squares}) *number = take<double>();
  return of;
}

LoggedValue::Data RecordReader::take_data() {
  switch (take<uint8_t>()) {
    case 0: return take<double>();
    case 1: return take<int64_t>();
    case 2: return take<bool>();
    case 3: return take_text();
    case 4: return &histograms_.emplace_back(take_histogram());
    default: break;
  }
  const auto bytes = take_text();
  return PngImage{{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}};
}

const Record& RecordReader::next() {
  histograms_.clear();
  record_.values.clear();
  take<Size>();
  record_.kind = take<Record::Kind>();
  record_.only = take<int32_t>();
  record_.step = take<int64_t>();
  record_.time = take<double>();
  for (auto count = take<Size>(); count > 0; --count) {
    const auto name = take_text();
    record_.values.emplace_back(name, take_data());
  }
  return record_;
}

std::size_t whole_records(std::string_view bytes) {
  std::size_t end = 0;
  Size size = 0;
  while (bytes.size() - end >= sizeof size) {
    std::memcpy(&size, bytes.data() + end, sizeof size);
    if (size > bytes.size() - end) break;
    end += size;
  }
  return end;
}

constexpr uint64_t kSpillPiece = uint64_t{1} << 20;  // bytes that are read from the file at a time

RecordQueue::~RecordQueue() { end_spill(); }

bool RecordQueue::push(std::string_view record) {
  bool wake = false;
  {
    base::Lock lock(mutex_);
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
  base::Lock lock(mutex_);
  changed_.wait(lock, [&]() MUSTER_REQUIRES(mutex_) { return closed_ || !memory_.empty() || has_spilled(); });
  changed_.wait_for(lock, gather, [&]() MUSTER_REQUIRES(mutex_) { return closed_ || hurry_ || has_spilled(); });
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
    base::Lock lock(mutex_);
    finished_ = taken_;
  }
  written_.notify_all();
}

bool RecordQueue::wait_until_written(std::chrono::milliseconds timeout) {
  base::Lock lock(mutex_);
  const auto wanted = pushed_;
  hurry_ = hurry_ || finished_ < wanted;
  changed_.notify_all();
  return written_.wait_for(lock, timeout, [&]() MUSTER_REQUIRES(mutex_) { return finished_ >= wanted; });
}

void RecordQueue::close() {
  {
    base::Lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void RecordQueue::spill(std::string_view record) {
  if (!spill_file_)
    spill_file_ = Descriptor(::open(spill_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (spill_file_ && write_at(spill_file_.get(), record, spill_written_) == record.size()) {
    spill_written_ += record.size();
    return;
  }
  pushed_ -= record.size();
  if (dropped_++ > 0) return;
  log::warning("MU422", ": values that wait to be logged fill their memory, and ", spill_path_.string(),
               " does not take them (", std::generic_category().message(errno),
               "); they are lost, and training goes on");
}

void RecordQueue::read_spilled(std::string& bytes, base::Lock& lock) {
  const auto begin = spill_read_, end = spill_written_;
  lock.unlock();
  // A record may be longer than a piece.
  for (auto size = std::min(kSpillPiece, end - begin);; size = std::min(size * 2, end - begin)) {
    bytes.resize(size);
    const auto count = ::pread(spill_file_.get(), bytes.data(), size, static_cast<off_t>(begin));
    bytes.resize(count < 0 ? 0 : whole_records({bytes.data(), static_cast<std::size_t>(count)}));
    if (!bytes.empty() || size == end - begin) break;
  }
  lock.lock();
  spill_read_ = bytes.empty() ? end : begin + bytes.size();  // a file that has become unreadable is given up
  if (bytes.empty()) pushed_ -= end - begin;
  if (spill_read_ == spill_written_) end_spill();
}

void RecordQueue::end_spill() {
  if (!spill_file_) return;
  spill_file_.close();
  std::error_code ignored;
  std::filesystem::remove(spill_path_, ignored);
  spill_read_ = spill_written_ = 0;
}

}  // namespace muster::track
