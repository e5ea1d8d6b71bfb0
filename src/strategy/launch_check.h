#pragma once  // for other rooms

#include <string>

#include "muster/base/detail/options.h"

namespace muster::strategy {

/// Checks that a program can do what a launcher requests: the name of a strategy (empty: no request), and options of
/// training ("fsdp.unit_min_elements", "ddp.bucket_cap_mb").
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are unknown,
/// unsupported or cannot be read; ConfigError (MU171) for sharding options with a strategy that does not shard, and for
/// options of replicated training with one that does.
void check_launch_options(const std::string& name, const options::RawOptions& fields);

/// Translates fields of Accelerate's FSDP plugin, Lightning's FSDPStrategy or fairscale, by their names there, to
/// fields of ShardedOptions. Places are kept; messages begin with them, so that "a.yaml line 3: offload_params" makes a
/// sentence. Muster's own names stay as they are.
/// Throws: ConfigError (MU196) for an unknown name, (MU197) for a feature that Muster does not have, (MU002) for a
/// value that cannot be read.
options::RawOptions own_sharding_fields(const options::RawOptions& fields);

}  // namespace muster::strategy
