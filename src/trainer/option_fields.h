#pragma once

#include "muster/base/detail/environment.h"
#include "muster/base/detail/options.h"
#include "muster/trainer/options.h"

namespace muster::trainer {

/// The options of TrainerOptions that the runtime does not have, each described once. Those that both have, such as
/// `strategy`, are the runtime's. To add an option, add its line in option_fields.cpp.
const options::Table<TrainerOptions>& option_table();

/// `values` with what the launcher requests in place of defaults.
/// Throws: ConfigError (MU171) for a contradiction, and as runtime::find_given_options().
TrainerOptions with_given_options(TrainerOptions values, const Environment& variables);

/// Those of the runtime's options that TrainerOptions has, and what the loops decide themselves.
RuntimeOptions runtime_options(const TrainerOptions& options);

/// Every option as text.
std::map<std::string, std::string> written_options(const TrainerOptions& options);

}  // namespace muster::trainer
