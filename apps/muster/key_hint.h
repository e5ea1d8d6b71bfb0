#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {

/// The end of a message about a key that a file of another tool does not have: "; nearest is 'stage'", or, if none of
/// its section is near, all of them.
std::string key_hint(std::string_view key, const std::vector<std::string>& of_section);

}  // namespace muster::cli
