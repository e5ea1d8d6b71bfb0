#pragma once  // for other rooms

#include <optional>
#include <string_view>

namespace muster {

/// The only parser of booleans, for options, files and variables alike: true, yes, on, 1, y, t; false, no, off, 0, n,
/// f; in any case. These are the words of YAML 1.1 and of Accelerate. nullopt for any other text.
std::optional<bool> read_bool(std::string_view text);

/// Whether both texts are equal, or mean the same boolean.
bool say_the_same(std::string_view one, std::string_view other);

}  // namespace muster
