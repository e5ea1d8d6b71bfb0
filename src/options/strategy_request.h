#pragma once  // for other rooms

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/strategy/options.h"

namespace muster::strategy {

/// A launcher's request for a strategy, without the variables that Accelerate's launcher sets.
struct StrategyRequest {
  options::RawOptions fields = {};                 ///< "fsdp.stage", "ddp.bucket_cap_mb", ...
  std::optional<std::string> name = {};            ///< name of the strategy
  std::string place = "variable MUSTER_STRATEGY";  ///< source of the name
};

/// Combines the strategy of the program (`in_code`), the launcher's request (`request`) and Accelerate's variables, in
/// this order of precedence. A request replaces options that the program left at their defaults, and must not
/// contradict those that the program set. Accelerate's FSDP_* variables are read only if the resulting strategy shards;
/// ACCELERATE_USE_FSDP turns "auto" into "fsdp".
/// Throws: ConfigError (MU171) for contradictions; ConfigError (MU196) for an unknown option, or one that is not
/// "name=value"; ConfigError (MU197) for an unsupported option of Accelerate or Lightning, with what to use instead;
/// ConfigError (MU002) for a value that cannot be read; and as Strategy's constructor.
Strategy resolve_strategy(const Strategy& in_code, const StrategyRequest& request, const Environment& variables);

/// Checks that a program can do what a launcher requests: the name of a strategy (empty: no request), and among the
/// options those of training ("fsdp.unit_min_elements", "ddp.bucket_cap_mb").
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are unknown,
/// unsupported or cannot be read; ConfigError (MU171) for sharding options with a strategy that does not shard, and for
/// options of replicated training with one that does.
void check_launch_options(const std::string& name, const options::RawOptions& options);

/// Translates fields of Accelerate's FSDP plugin, Lightning's FSDPStrategy or fairscale, by their names there, to
/// fields of ShardedOptions. Places are kept; messages begin with them, so that "a.yaml line 3: offload_params" makes a
/// sentence. Muster's own names stay as they are.
/// Throws: ConfigError (MU196) for an unknown name, (MU197) for a feature that Muster does not have, (MU002) for a
/// value that cannot be read.
options::RawOptions own_sharding_fields(const options::RawOptions& fields);

/// The strategy's options as text, such as "fsdp.stage": "full". Code-only options and those of other strategies are
/// left out.
std::map<std::string, std::string> written_fields(const Strategy& strategy);

}  // namespace muster::strategy
