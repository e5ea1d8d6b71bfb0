#pragma once  // for other rooms

#include <string>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::options {

/// A Markdown table of these options, for the reference page.
std::string to_markdown(const std::vector<Description>& table);

}  // namespace muster::options
