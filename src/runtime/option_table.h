#pragma once

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The options of a program, apart from those of its strategy.
const options::Table<RuntimeOptions>& runtime_option_table();

/// `values` with the given options in place of its defaults. Options that a program does not have are ignored.
/// Throws: ConfigError (MU171) for a contradiction, (MU002, MU021) for a value that cannot be read, and as
/// Strategy::parse(), Precision::parse() and strategy::resolve_strategy().
RuntimeOptions with_given_options(RuntimeOptions values, const options::RawOptions& given_options,
                                  const Environment& variables);

/// Options that other tools request by variables that the table does not list, such as ACCELERATE_USE_CPU.
options::RawOptions given_by_other_tools(const Environment& variables);

/// Every resolved option as text, with those of the strategy.
std::map<std::string, std::string> written_options(const RuntimeOptions& options);

}  // namespace muster::runtime
