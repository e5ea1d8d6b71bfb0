#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate_names.h"

namespace muster::cli {

/// A key of DeepSpeed's file: "zero_optimization.stage"; one that ends with a dot is all other keys of that section.
/// `text` of Follow::in_code is the name by which Accelerate has it; otherwise as for AccelerateName. Null and "auto"
/// ask for nothing.
struct DeepspeedKey {
  std::string_view name;
  Follow follow = Follow::ignored;
  std::string_view text = "";
  std::string_view accepted = "";  ///< values that ask for nothing, separated by blanks
};

std::span<const DeepspeedKey> deepspeed_keys();

/// The key of this name, or what stands for its section; nullptr for an unknown one.
const DeepspeedKey* find_deepspeed_key(std::string_view name);

/// The keys of a section ("zero_optimization"), without it; of the top for "".
std::vector<std::string> deepspeed_keys_of(std::string_view section);

/// A table of all keys for the reference page.
std::string deepspeed_markdown();

}  // namespace muster::cli
