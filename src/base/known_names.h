#pragma once  // for other rooms

#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// The name that `word` is most likely a misspelling of; "" if none is near. Case, '-' and '_' make no difference.
std::string nearest_name(std::string_view word, const std::vector<std::string>& known);

/// The end of a message about an unknown name: "; nearest is 'devices'; the known ones are accelerator, devices", or
/// only the latter.
std::string known_names(std::string_view word, const std::vector<std::string>& known);

}  // namespace muster
