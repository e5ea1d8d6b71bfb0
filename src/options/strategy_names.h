#pragma once

#include <span>
#include <string_view>

#include "muster/parallel/sharded_options.h"

namespace muster::strategy {

/// The name of a strategy in another library.
struct StrategyAlias {
  std::string_view name;              ///< lowercase name, compared case-insensitively
  std::string_view means = {};        ///< one of Strategy::kNames; empty: unsupported
  bool reshard_after_forward = true;  ///< value of this option if the strategy shards parameters
  std::string_view instead = {};      ///< alternative for an unsupported strategy
};

std::span<const StrategyAlias> strategy_aliases();
/// Finds an alias; nullptr for an unknown name.
const StrategyAlias* find_alias(std::string_view name);

}  // namespace muster::strategy
