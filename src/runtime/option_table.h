#pragma once

#include "muster/base/detail/environment.h"
#include "muster/base/detail/options.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The options of a program, apart from those of its strategy.
const options::Table<RuntimeOptions>& runtime_option_table();

/// `values` with the given options in place of its defaults. Options that are no program's are left out.
/// Throws: ConfigError (MU171) for a contradiction, (MU002, MU021) for a value that cannot be read, and as
/// Strategy::parse(), Precision::parse() and strategy::resolve_strategy().
RuntimeOptions with_given_options(RuntimeOptions values, const options::RawOptions& given_options,
                                  const Environment& variables);

/// What other tools' variables request, apart from those in the table: ACCELERATE_USE_CPU and the like.
options::RawOptions given_by_other_tools(const Environment& variables);

/// Every option as text, those of the strategy included: what a rank resolved.
std::map<std::string, std::string> written_options(const RuntimeOptions& options);

}  // namespace muster::runtime
