#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"
#include "muster/parallel/sharded_options.h"

namespace muster::strategy {

/// A field of ShardedOptions that can be given as text.
struct ShardedField {
  options::Description description;
  std::function<std::string(parallel::ShardedOptions&, const std::string&)> read;  ///< as options::Value<T>::read
  std::function<std::string(const parallel::ShardedOptions&)> write;
};
const std::vector<ShardedField>& sharded_fields();

/// Texts for fields of ShardedOptions, and where they were found.
using FieldTexts = std::map<std::string, options::Found>;

/// A field of Accelerate or Lightning and how it is converted. `take` may read all such fields of the same source
/// (`others`).
struct ForeignField {
  std::string_view name, variable, taken_as;
  void (*take)(const options::Found& found, const FieldTexts& others, FieldTexts& ours);
};
std::span<const ForeignField> foreign_fields();

}  // namespace muster::strategy
