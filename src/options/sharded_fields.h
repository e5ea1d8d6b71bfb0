#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/parallel/options.h"

namespace muster::strategy {

using ShardedField = options::Option<parallel::ShardedOptions>;
/// The fields of ShardedOptions, under their names there.
const std::vector<ShardedField>& sharded_fields();

using ReplicatedField = options::Option<parallel::DdpOptions>;
/// The fields of DdpOptions; those of PowerSGD are "power_sgd.rank" and so on.
const std::vector<ReplicatedField>& replicated_fields();

/// Texts for fields of ShardedOptions, with their sources.
using FieldTexts = options::RawOptions;

/// A field of Accelerate, Lightning or fairscale, with its conversion. `take` may read all such fields of the same
/// source (`others`).
struct ForeignField {
  std::string_view name, variable, taken_as;
  void (*take)(const options::Found& found, const FieldTexts& others, FieldTexts& ours);
};
/// Fields of Accelerate, Lightning and PyTorch.
std::span<const ForeignField> python_fields();
/// Arguments of fairscale's FullyShardedDataParallel and ShardedDataParallel.
std::span<const ForeignField> fairscale_fields();
/// All fields of python_fields() and fairscale_fields().
const std::vector<ForeignField>& foreign_fields();

/// Reads a boolean, see read_bool(). Throws: ConfigError (MU002).
bool read_switch(const options::Found& found);
/// Throws: ConfigError (MU197), always, for a field without a counterpart.
[[noreturn]] void refuse_field(const options::Found& found, const std::string& instead);
/// For a switch of an unsupported feature, which may also name details: activation_checkpointing=Block.
/// Throws: ConfigError (MU197) unless it is off.
void refuse_unless_off(const options::Found& found, const std::string& instead);
void no_effect(const options::Found& found, const FieldTexts& others, FieldTexts& ours);

}  // namespace muster::strategy
