#pragma once

#include <span>
#include <string>
#include <string_view>

#include "muster/parallel/sharded_options.h"

namespace muster::strategy {

/// A name that other libraries use for a strategy.
struct StrategyAlias {
  std::string_view name;              ///< compared in lower case
  std::string_view means = {};        ///< one of Strategy::kNames; empty: unsupported
  bool reshard_after_forward = true;  ///< of a strategy that shards parameters
  std::string_view instead = {};      ///< what to use instead if it is unsupported
};

std::span<const StrategyAlias> strategy_aliases();
/// nullptr for an unknown name.
const StrategyAlias* find_alias(std::string_view name);

}  // namespace muster::strategy
