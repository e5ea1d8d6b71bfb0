#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// The groups in which `accelerate launch --help` lists its flags; `file`: a key of its file that is no flag.
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

/// Reasons that keys of DeepSpeed's file have in common with these.
inline constexpr std::string_view kNoOffload =
    "parameters, gradients and states stay on the device; shard them over more ranks, or write none";
inline constexpr std::string_view kNoCompiler = "there is no compiler for C++ modules";

/// What becomes of a flag or key of Accelerate.
enum class Follow {
  in_code,   ///< translate_accelerate() decides, as it depends on other names
  option,    ///< an option of ours, which `text` names
  sharding,  ///< an option of sharded training, which `text` names as Accelerate's plugin does
  ignored,   ///< changes nothing here; `text` says why
  warned,    ///< has no effect, and a line says so, except for the values in `accepted`
  refused    ///< MU481, except for the values in `accepted`; `text` says what to do
};

/// A flag of `accelerate launch`, or a key of its file; both have the same names.
struct AccelerateName {
  std::string_view name;
  AccelerateGroup group = AccelerateGroup::general;
  Follow follow = Follow::ignored;
  std::string_view text = "";
  std::string_view accepted = "";  ///< values that ask for nothing, separated by blanks
  bool is_switch = false;
};

std::span<const AccelerateName> accelerate_names();

/// nullptr for an unknown name.
const AccelerateName* find_accelerate_name(std::string_view name);

/// The flags: "num_processes" is --num_processes and --num-processes.
std::vector<options::Description> accelerate_flags(AccelerateGroup group);

/// The title of a group in the help.
std::string_view title_of(AccelerateGroup group);

/// A table of all names for the reference page.
std::string accelerate_markdown();

/// The variable in which Accelerate's launcher passes it on to its processes; "" for none, and where a launcher of ours
/// follows another of its options.
std::string variable_of_accelerate(const AccelerateName& one);

/// The sections that a file of `accelerate config` may have.
std::vector<std::string> accelerate_sections();

/// The keys that a section of a file of `accelerate config` ("fsdp_config") may have; for "", those outside of
/// sections.
std::vector<std::string> accelerate_keys_of(std::string_view section);

/// The name for a key of a file of `accelerate config`: "fsdp_config.version" is "fsdp_version".
std::string accelerate_name_of_key(const std::string& key);

}  // namespace muster::cli
