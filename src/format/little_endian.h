#pragma once

#include <cstring>
#include <string>
#include <string_view>

namespace muster::format {

/// A little-endian number of type T at a position in a text. Requires: it is within the text.
template <class T>
T number_at(std::string_view text, std::size_t place) {
  T value;
  std::memcpy(&value, text.data() + place, sizeof(T));
  return value;
}

/// Appends a number in little-endian order.
template <class T>
void append_number(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace muster::format
