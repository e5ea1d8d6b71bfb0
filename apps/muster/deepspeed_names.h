#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate_names.h"

namespace muster::cli {

/// The key of this name, or the one that stands for its section; nullptr for an unknown key.
const ForeignWord* find_deepspeed_key(std::string_view name);

/// The keys of a section ("zero_optimization"), without its name; "": the top level.
std::vector<std::string> deepspeed_keys_of(std::string_view section);

/// A table of all keys for the reference page.
std::string deepspeed_markdown();

}  // namespace muster::cli
