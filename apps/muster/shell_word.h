#pragma once

#include <string>

namespace muster::cli {

/// The text as one shell word, quoted if needed.
std::string shell_word(const std::string& text);

}  // namespace muster::cli
