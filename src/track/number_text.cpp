#include "number_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace muster::track {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // to_chars would write its sign
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

}  // namespace muster::track
