#pragma once

#include <string>
#include <string_view>

namespace muster::track {

/// The text as part of a URI: all but letters, digits and -._~ as %XX, and '/' too unless it is kept.
std::string percent_encoded(std::string_view text, bool keep_slashes = false);
/// The text with %XX as bytes.
std::string percent_decoded(std::string_view text);

}  // namespace muster::track
