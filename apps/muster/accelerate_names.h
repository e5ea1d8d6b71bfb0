#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// The groups of flags in `accelerate launch --help`; `file`: a key of its file that is not a flag.
enum class AccelerateGroup {
  general,
  hardware,
  resources,
  paradigm,
  distributed,
  mpi,
  tpu,
  aws,
  deepspeed,
  fsdp,
  megatron,
  fp8,
  parallelism,
  file
};

/// Reasons shared by keys of Accelerate and of DeepSpeed's file.
inline constexpr std::string_view kNoOffload =
    "parameters, gradients and states stay on the device; shard them over more ranks, or write none";
inline constexpr std::string_view kNoCompiler = "there is no compiler for C++ modules";

/// How a flag or key of Accelerate is handled.
enum class Follow {
  in_code,   ///< translate_accelerate() decides, since the result depends on other names
  option,    ///< an option of Muster; `text` is its name
  sharding,  ///< an option of sharded training; `text` is its name in Accelerate's plugin
  ignored,   ///< changes nothing here; `text` is the reason
  warned,    ///< has no effect, and is reported, except for the values in `accepted`
  refused    ///< error MU481, except for the values in `accepted`; `text` is the remedy
};

/// A flag of `accelerate launch` or a key of its file; both have the same names.
struct AccelerateName {
  std::string_view name;
  AccelerateGroup group = AccelerateGroup::general;
  Follow follow = Follow::ignored;
  std::string_view text = "";
  std::string_view accepted = "";  ///< values that ask for nothing, separated by blanks
  bool is_switch = false;
};

std::span<const AccelerateName> accelerate_names();

/// Finds a name; nullptr for an unknown one.
const AccelerateName* find_accelerate_name(std::string_view name);

/// The flags of a group: "num_processes" is --num_processes and --num-processes.
std::vector<options::Description> accelerate_flags(AccelerateGroup group);

/// The title of a group in the help.
std::string_view title_of(AccelerateGroup group);

/// A table of all names for the reference page.
std::string accelerate_markdown();

/// The variable in which Accelerate's launcher passes the value on to its processes; "" if there is none, or if a
/// launcher of Muster follows another of its options.
std::string variable_of_accelerate(const AccelerateName& one);

/// The sections that a file of `accelerate config` may have.
std::vector<std::string> accelerate_sections();

/// The keys that a section of a file of `accelerate config` ("fsdp_config") may have; for "", the keys outside of
/// sections.
std::vector<std::string> accelerate_keys_of(std::string_view section);

/// The name for a key of a file of `accelerate config`: "fsdp_version" for "fsdp_config.version".
std::string accelerate_name_of_key(const std::string& key);

}  // namespace muster::cli
