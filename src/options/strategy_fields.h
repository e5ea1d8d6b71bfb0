#pragma once

#include "muster/base/detail/options.h"
#include "muster/parallel/options.h"
#include "options/words.h"

namespace muster::strategy {

/// The fields of ShardedOptions, under their names there.
const options::Table<parallel::ShardedOptions>& sharded_table();

/// The fields of DdpOptions; those of PowerSGD are "power_sgd.rank" and so on.
const options::Table<parallel::DdpOptions>& replicated_table();

/// Puts what a word of Place::sharding means into `ours`. `others` are all fields of its source, by the names there.
/// Throws: ConfigError (MU197) for a field without a counterpart, unless it asks for nothing; (MU002) for a value that
/// cannot be read.
void take_sharding_word(const options::ForeignWord& word, const options::Found& found,
                        const options::RawOptions& others, options::RawOptions& ours);

/// What PyTorch's names of strategies without resharding set beside the strategy.
inline constexpr std::string_view kKeepsParameters = "reshard_after_forward=false";

/// Finds a name of another tool, in any case; nullptr for an unknown one.
const options::ForeignWord* find_strategy_word(std::string_view name);

}  // namespace muster::strategy
