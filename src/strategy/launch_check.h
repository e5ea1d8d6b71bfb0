#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/options.h"

namespace muster::strategy {

/// Checks that a program can do what a launcher requests: the name of a strategy, and options of training
/// ("fsdp.unit_min_elements", "ddp.bucket_cap_mb"); an empty name requests nothing.
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are unknown,
/// unsupported or cannot be read; ConfigError (MU171) for options of sharding if the strategy of that name shards
/// nothing, and for options of replicated training if it shards.
void check_launch_options(const std::string& name, const options::RawOptions& fields);

/// What fields of Accelerate's FSDP plugin, Lightning's FSDPStrategy or fairscale, by their names there, ask for: texts
/// by the names of ShardedOptions. The places stay; messages begin with them, so that "a.yaml line 3: offload_params"
/// makes a sentence. Our own names stay as they are. Throws: ConfigError (MU196) for an unknown name, (MU197) for what
/// Muster does not have, (MU002) for a value that cannot be read.
options::RawOptions own_sharding_fields(const options::RawOptions& fields);

}  // namespace muster::strategy
