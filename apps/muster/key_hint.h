#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {

/// The end of a message about an unknown key in a file of another tool: "; nearest is 'stage'" or, if no key of its
/// section is near, all of them.
std::string key_hint(std::string_view key, const std::vector<std::string>& of_section);

}  // namespace muster::cli
