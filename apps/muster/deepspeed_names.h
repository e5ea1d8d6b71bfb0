#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate_names.h"

namespace muster::cli {

/// A key of DeepSpeed's file, such as "zero_optimization.stage"; a key that ends with a dot stands for all other keys
/// of that section. `text` is Accelerate's name for Follow::in_code, otherwise as in AccelerateName. Null and "auto"
/// ask for nothing.
struct DeepspeedKey {
  std::string_view name;
  Follow follow = Follow::ignored;
  std::string_view text = "";
  std::string_view accepted = "";  ///< values that ask for nothing, separated by blanks
};

std::span<const DeepspeedKey> deepspeed_keys();

/// The key of this name, or the one that stands for its section; nullptr for an unknown key.
const DeepspeedKey* find_deepspeed_key(std::string_view name);

/// The keys of a section ("zero_optimization"), without its name; "": the top level.
std::vector<std::string> deepspeed_keys_of(std::string_view section);

/// A table of all keys for the reference page.
std::string deepspeed_markdown();

}  // namespace muster::cli
