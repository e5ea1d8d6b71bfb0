#include "key_hint.h"

#include "base/text.h"

namespace muster::cli {

std::string key_hint(std::string_view key, const std::vector<std::string>& of_section) {
  const auto nearest = nearest_name(key, of_section);
  return nearest.empty() ? known_ones(of_section) : "; nearest is '" + nearest + "'";
}

}  // namespace muster::cli
