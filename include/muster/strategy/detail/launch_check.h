#pragma once

#include <string>

#include "muster/base/detail/options.h"

namespace muster::strategy {

/// Checks that a program can do what a launcher requests: the name of a strategy, and options of training
/// ("fsdp.unit_min_elements", "ddp.bucket_cap_mb"); an empty name requests nothing.
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are unknown,
/// unsupported or cannot be read; ConfigError (MU171) for options of sharding if the strategy of that name shards
/// nothing, and for options of replicated training if it shards.
void check_launch_options(const std::string& name, const options::RawOptions& fields);

}  // namespace muster::strategy
