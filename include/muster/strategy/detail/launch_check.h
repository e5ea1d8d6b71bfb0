#pragma once

#include <string>

namespace muster::strategy {

/// Checks that a program can do what a launcher requests: the name of a strategy, and options of sharded training
/// ("unit_min_elements=1000,unit_classes=Block"); an empty string requests nothing.
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are unknown,
/// unsupported or cannot be read; ConfigError (MU171) for options if the strategy of that name shards nothing.
void check_launch_options(const std::string& name, const std::string& sharding);

}  // namespace muster::strategy
