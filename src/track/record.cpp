#include "record.h"

#include <cstring>
#include <utility>

#include "number_text.h"

namespace muster::track {
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

}  // namespace muster::track
