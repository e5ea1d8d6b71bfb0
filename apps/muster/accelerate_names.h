#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"
#include "options/words.h"

namespace muster::cli {

using options::Follow;
using options::ForeignWord;
using options::Group;

/// Finds a flag of `accelerate launch` or a key of its file; nullptr for an unknown one.
const ForeignWord* find_accelerate_name(std::string_view name);

/// The flags of a group: "num_processes" is --num_processes and --num-processes.
std::vector<options::Description> accelerate_flags(Group group);

/// The title of a group in the help.
std::string_view title_of(Group group);

/// A table of all names for the reference page.
std::string accelerate_markdown();

/// The variable in which Accelerate's launcher passes the value on to its processes; "" if there is none, or if a
/// launcher of Muster follows another of its options.
std::string variable_of_accelerate(const ForeignWord& one);

/// The sections that a file of `accelerate config` may have.
std::vector<std::string> accelerate_sections();

/// The keys that a section of a file of `accelerate config` ("fsdp_config") may have; for "", the keys outside of
/// sections.
std::vector<std::string> accelerate_keys_of(std::string_view section);

/// The name for a key of a file of `accelerate config`: "fsdp_version" for "fsdp_config.version".
std::string accelerate_name_of_key(const std::string& key);

}  // namespace muster::cli
