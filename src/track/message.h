#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::track {

/// Writes a Protocol Buffers message, field by field. Source: "Encoding", protobuf.dev.
class Message {
 public:
  Message& integer(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
    return *this;
  }
  Message& number(int field, double value) {
    varint(static_cast<uint64_t>(field) << 3 | 1);
    fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  Message& number(int field, float value) {
    varint(static_cast<uint64_t>(field) << 3 | 5);
    fixed(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return bytes(field, value.bytes_); }
  Message& numbers(int field, const std::vector<double>& values) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(values.size() * 8);
    for (const double value : values) fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  const std::string& text() const noexcept { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void fixed(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> 8 * i);
  }

  std::string bytes_;
};

}  // namespace muster::track
