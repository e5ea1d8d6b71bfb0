#include "spelling.h"

#include <algorithm>
#include <string>

namespace muster {

std::optional<bool> read_bool(std::string_view text) {
  const auto word = lower_case(std::string(text));
  const auto is_one_of = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is_one_of({"true", "yes", "on", "1", "y", "t"})) return true;
  if (is_one_of({"false", "no", "off", "0", "n", "f"})) return false;
  return {};
}

bool say_the_same(std::string_view one, std::string_view other) {
  return one == other || (read_bool(one) && read_bool(one) == read_bool(other));
}

}  // namespace muster
