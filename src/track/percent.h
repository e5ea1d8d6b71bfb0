#pragma once

#include <string>
#include <string_view>

namespace muster::track {

/// The text encoded for a URI: all characters but letters, digits and -._~ become %XX, '/' too unless it is kept.
std::string percent_encoded(std::string_view text, bool keep_slashes = false);
/// The text with each %XX decoded.
std::string percent_decoded(std::string_view text);

}  // namespace muster::track
