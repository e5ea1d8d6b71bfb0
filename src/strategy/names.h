#pragma once

#include "muster/parallel/sharded_options.h"

#include <span>
#include <string>
#include <string_view>

namespace muster::strategy {

/// A name that others use for a way to train.
struct StrategyAlias {
  std::string_view name;                 ///< compared in small letters
  std::string_view means = {};           ///< one of Strategy::kNames; empty: it is not there
  bool reshard_after_forward = true;     ///< where parameters are sharded
  std::string_view instead = {};         ///< what to use where it is not there
};

std::span<const StrategyAlias> strategy_aliases();
std::string in_small_letters(std::string_view text);
/// nullptr for an unknown name.
const StrategyAlias* find_alias(std::string_view name);

}  // namespace muster::strategy
