#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/options.h"

namespace muster::options {

/// Whether `text` is the option's default. A boolean may have any spelling that read_bool() knows.
bool is_default(const Description& option, const std::string& text);

}  // namespace muster::options
