#pragma once

#include <string_view>

#include "options/words.h"

namespace muster::strategy {

/// What PyTorch's names of strategies without resharding set beside the strategy.
inline constexpr std::string_view kKeepsParameters = "reshard_after_forward=false";

/// Finds a name of another tool, in any case; nullptr for an unknown one.
const options::ForeignWord* find_strategy_word(std::string_view name);

}  // namespace muster::strategy
