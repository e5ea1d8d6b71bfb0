#pragma once  // for other rooms

#include <string>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::options {

/// The table of these options for the reference page, in Markdown.
std::string to_markdown(const std::vector<Description>& table);

}  // namespace muster::options
