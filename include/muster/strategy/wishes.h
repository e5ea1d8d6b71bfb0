#pragma once

#include <string>

namespace muster::strategy {

/// Whether a program can follow what a launcher wishes: the name of a strategy, and options of sharded training
/// ("unit_min_elements=1000,unit_classes=Block"); an empty text wishes nothing.
/// Throws: as Strategy::parse() for the name; ConfigError (MU196, MU197, MU002) for options that are not known, not there or cannot be
/// read; ConfigError (MU171) for options where the strategy of that name shards nothing.
void check_wishes(const std::string& name, const std::string& sharding);

}  // namespace muster::strategy
