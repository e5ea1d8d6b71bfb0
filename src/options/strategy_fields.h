#pragma once

#include "muster/base/detail/options.h"
#include "muster/parallel/options.h"
#include "options/words.h"

namespace muster::strategy {

using ShardedField = options::Option<parallel::ShardedOptions>;
/// The fields of ShardedOptions, under their names there.
const std::vector<ShardedField>& sharded_fields();

using ReplicatedField = options::Option<parallel::DdpOptions>;
/// The fields of DdpOptions; those of PowerSGD are "power_sgd.rank" and so on.
const std::vector<ReplicatedField>& replicated_fields();

/// Texts for fields of ShardedOptions, with their sources.
using FieldTexts = options::RawOptions;

/// Puts what a word of Place::sharding means into `ours`. `others` are all fields of its source, by the names there.
/// Throws: ConfigError (MU197) for a field without a counterpart, unless it asks for nothing; (MU002) for a value that
/// cannot be read.
void take_sharding_word(const options::ForeignWord& word, const options::Found& found, const FieldTexts& others,
                        FieldTexts& ours);

/// What PyTorch's names of strategies without resharding set beside the strategy.
inline constexpr std::string_view kKeepsParameters = "reshard_after_forward=false";

/// Finds a name of another tool, in any case; nullptr for an unknown one.
const options::ForeignWord* find_strategy_word(std::string_view name);

}  // namespace muster::strategy
