#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace muster::track {

/// A message of Protocol Buffers, read without its description: the fields by number.
class ParsedMessage {
 public:
  explicit ParsedMessage(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto key = varint(bytes);
      std::string value;
      switch (key & 7) {
        case 0: value = fixed(varint(bytes)); break;
        case 1: value = take(bytes, 8); break;
        case 2: value = take(bytes, varint(bytes)); break;
        case 5: value = take(bytes, 4); break;
        default: throw std::runtime_error("wire type " + std::to_string(key & 7));
      }
      fields_[static_cast<int>(key >> 3)].push_back(value);
    }
  }

  bool has(int field) const { return fields_.contains(field); }
  std::size_t count(int field) const { return has(field) ? fields_.at(field).size() : 0; }
  const std::string& text(int field, std::size_t index = 0) const { return fields_.at(field).at(index); }
  ParsedMessage message(int field, std::size_t index = 0) const { return ParsedMessage(text(field, index)); }
  int64_t integer(int field) const { return as<int64_t>(text(field)); }
  double number(int field) const { return as<double>(text(field)); }
  float single(int field) const { return as<float>(text(field)); }
  std::vector<double> numbers(int field) const {
    std::vector<double> values;
    for (auto rest = std::string_view(text(field)); !rest.empty();) values.push_back(as<double>(take(rest, 8)));
    return values;
  }

 private:
  template <class T>
  static T as(const std::string& bytes) {
    if (bytes.size() != sizeof(T)) throw std::runtime_error("a field of another size");
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  static std::string fixed(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
  static std::string take(std::string_view& bytes, uint64_t size) {
    if (size > bytes.size()) throw std::runtime_error("a field ends after its message");
    const auto value = std::string(bytes.substr(0, size));
    bytes.remove_prefix(size);
    return value;
  }
  static uint64_t varint(std::string_view& bytes) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(bytes, 1)[0]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }

  std::map<int, std::vector<std::string>> fields_;
};

/// Bit by bit, unlike what it checks.
inline uint32_t slow_masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

/// The events of a file, up to its last whole record. Throws: std::runtime_error for a wrong CRC.
inline std::vector<ParsedMessage> read_events(std::string_view bytes) {
  std::vector<ParsedMessage> events;
  const auto check = [](std::string_view data, std::string_view crc) {
    uint32_t stored = 0;
    std::memcpy(&stored, crc.data(), sizeof stored);
    if (stored != slow_masked_crc32c(data)) throw std::runtime_error("a wrong CRC");
  };
  while (bytes.size() >= 12) {
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    check(bytes.substr(0, 8), bytes.substr(8, 4));
    if (bytes.size() < size + 16) break;
    check(bytes.substr(12, size), bytes.substr(12 + size, 4));
    events.emplace_back(bytes.substr(12, size));
    bytes.remove_prefix(size + 16);
  }
  return events;
}

}  // namespace muster::track
