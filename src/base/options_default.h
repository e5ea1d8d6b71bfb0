#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/options.h"

namespace muster::options {

/// Whether `text` is the option's default; a boolean may be spelled in any way, see read_bool().
bool is_default(const Description& option, const std::string& text);

}  // namespace muster::options
