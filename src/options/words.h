#pragma once  // for other rooms

#include <span>

#include "muster/base/detail/options.h"

// Why: docs/decisions/0170-a-room-of-options.md.
namespace muster::options {

/// A tool whose words people bring along. A word of several tools is that of the one it comes from.
enum class Tool : std::uint8_t { accelerate, deepspeed, fairscale, lightning, mpi, pytorch, slurm, torchrun };

/// Where a word stands.
enum class Place : std::uint8_t {
  strategy,   ///< the name of a strategy, in lower case
  sharding,   ///< a field of sharded training
  run,        ///< a flag of another launcher that somebody gives to `muster run`, which answers with its own
  launch,     ///< a flag of `accelerate launch` or a key of its file, which `muster launch` follows; same names in both
  deepspeed,  ///< a key of DeepSpeed's file; one that ends with a dot stands for all other keys of its section
  trainer,    ///< an argument of Lightning's Trainer that is not an option here
  cli,        ///< a key of LightningCLI's file that is no section here
  variable,   ///< an environment variable
};

/// The groups of flags in `accelerate launch --help`; `file`: a key of its file that is not a flag; `none`: not of
/// Place::launch.
enum class Group : std::uint8_t {
  none,
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

/// What becomes of a word.
enum class Follow : std::uint8_t {
  in_code,   ///< the reader of its place decides, since the result depends on the value or on other words
  option,    ///< it means `text`: an option, a field, a strategy or a flag of ours
  sharding,  ///< it means the word `text` of Place::sharding
  ignored,   ///< it changes nothing here; `text` is the reason
  warned,    ///< it has no effect, and is reported unless it asks for nothing; `text` is the reason
  refused    ///< it is an error unless it asks for nothing; `text` is the remedy
};

/// A word of another tool, and ours or why there is none.
struct ForeignWord {
  std::string_view word;
  Follow follow = Follow::ignored;
  std::string_view text = "";
  std::string_view accepted = "";  ///< values that ask for nothing, in lower case, separated by blanks
  bool is_switch = false;
  std::string_view variable = "";  ///< the variable in which Accelerate's launcher passes a field of sharding on
  std::string_view also = "";      ///< an option that a strategy's name sets, too: "reshard_after_forward=false"
  Tool tool = Tool::accelerate;
  Place place = Place::strategy;
  Group group = Group::none;
};

/// The table, ordered by place.
std::span<const ForeignWord> foreign_words();
std::span<const ForeignWord> foreign_words(Place place);

/// nullptr for an unknown word.
const ForeignWord* find_foreign_word(Place place, std::string_view word);

/// Whether a value is one that asks for nothing. A boolean may have any spelling that read_bool() knows.
bool asks_for_nothing(const ForeignWord& word, std::string_view value);

/// What to write for `muster run` in place of another launcher's flag ("num_processes": "--devices"), or a remark; ""
/// for an unknown one. Names have underscores and no leading dashes.
std::string spelling_here(std::string_view flag);

/// The variables of other tools that set this option.
std::vector<std::string> foreign_variables(const Description& option);

}  // namespace muster::options
