#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace muster::format {

/// A little-endian number of N bytes at a place in a text. Requires: it lies within.
template <class T>
T number_at(std::string_view text, std::size_t place) {
  T value;
  std::memcpy(&value, text.data() + place, sizeof(T));
  return value;
}

/// Appends a number, little-endian.
template <class T>
void append_number(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace muster::format
