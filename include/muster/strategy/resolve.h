#pragma once

#include "muster/base/environment.h"
#include "muster/base/options.h"
#include "muster/strategy/options.h"

#include <optional>
#include <string>
#include <vector>

namespace muster::strategy {

/// What a launcher wishes for the program's strategy, beside the variables that Accelerate's launcher sets.
struct StrategyWish {
  std::optional<std::string> name = {};       ///< of the strategy
  std::optional<std::string> sharding = {};   ///< options of sharded training: "unit_min_elements=1000,unit_classes=Block,Head"
};

/// The strategy as the program, the launcher and Accelerate's variables want it together, the former counting more. A wish fills what
/// the program left at its default, and must not contradict what it set. Accelerate's FSDP_* variables count where the strategy is
/// a sharded one by then; ACCELERATE_USE_FSDP makes it one.
/// Throws: ConfigError (MU171) for contradictions; ConfigError (MU196) for an option that is not known, or that is no "name=value";
/// ConfigError (MU197) for an option of the originals that is not there, with what to use instead; ConfigError (MU002) for a value
/// that cannot be read; and as Strategy's constructor.
Strategy resolve_strategy(const Strategy& told, const StrategyWish& wish, const Environment& variables);

/// The options of sharded training that can be given as text, under their names in ShardedOptions.
std::vector<options::Description> sharded_option_descriptions();

/// How Muster takes a field of Accelerate's FSDP plugin or an argument of Lightning's FSDPStrategy.
struct OriginalField {
  std::string name;       ///< in Python; understood as a name in StrategyWish::sharding
  std::string variable;   ///< of Accelerate; may be empty
  std::string taken_as;   ///< one sentence for the reference
};
std::vector<OriginalField> original_sharding_fields();

}  // namespace muster::strategy
